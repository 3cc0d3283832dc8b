import tseslint from "typescript-eslint";

export default tseslint.config({ ignores: ["node_modules/"] }, tseslint.configs.recommended, {
  rules: {
    "@typescript-eslint/consistent-type-imports": "error",
    eqeqeq: "error",
    "max-lines": ["error", { max: 300 }],
    "max-lines-per-function": ["error", { max: 40, skipBlankLines: true, skipComments: true }],
    "no-console": "error",
  },
});
