import { env } from "node:process";

import { defineConfig } from "vite";

const FOLDER = "../src/regard/assets/page";

/** A script in one file, without chunks: for pages without a server, and for notebooks. */
function oneFile(entry: string, name: string) {
  return {
    outDir: `${FOLDER}/alone`,
    emptyOutDir: false,
    copyPublicDir: false,
    target: "es2022",
    cssCodeSplit: false,
    modulePreload: false as const,
    rollupOptions: {
      input: entry,
      preserveEntrySignatures: "exports-only" as const,
      output: { entryFileNames: name, assetFileNames: "[name][extname]", inlineDynamicImports: true },
    },
  };
}

// The libraries are chunks of their own, loaded when a view needs them. The entry holds the rest of the page. It also runs
// in Node, to draw a chart as a file, and in files that hold the page and one chart.
const PAGE = {
  outDir: FOLDER,
  emptyOutDir: true,
  target: "es2022",
  cssCodeSplit: false,
  modulePreload: false as const,
  chunkSizeWarningLimit: 2000,
};

const BUILDS: Record<string, object> = {
  capture: oneFile("src/shell/main.tsx", "page.js"),
  widget: oneFile("src/notebook/widget.ts", "widget.js"),
};

export default defineConfig(({ mode }) => ({
  base: "./",
  build: BUILDS[mode] ?? PAGE,
  // A capture has no charts, and the library that lays them out is four times as large as the rest of the page.
  resolve: mode === "capture" ? { alias: { "elkjs/lib/elk.bundled.js": "/src/explain/no_layout.ts" } } : {},
  // The Host header must not change: the server refuses requests whose Origin is not its own host.
  server: { proxy: { "/api": { target: env["REGARD_SERVER"] ?? "http://127.0.0.1:8765", changeOrigin: false } } },
}));
