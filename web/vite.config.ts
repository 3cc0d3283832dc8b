import { defineConfig } from "vite";

// `npx vite` serves the page while one works on it; the API comes from `regard view … --port 8765`.
// `--mode explain` builds the page of `regard explain` beside the other: one script, which a file can hold whole and Node
// can run.
export default defineConfig(({ mode }) => ({
  base: "./",
  build: {
    outDir: "../src/regard/assets/page", target: "es2022",
    ...(mode === "explain"
      ? {
          emptyOutDir: false, chunkSizeWarningLimit: 2000, copyPublicDir: false, modulePreload: false as const,
          rollupOptions: { input: "explain.html", output: { inlineDynamicImports: true, entryFileNames: "assets/explain.js", assetFileNames: "assets/explain[extname]" } },
        }
      : { emptyOutDir: true, chunkSizeWarningLimit: 600 }),
  },
  server: { proxy: { "/api": "http://127.0.0.1:8765" } },
}));
