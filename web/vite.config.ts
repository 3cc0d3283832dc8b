import { env } from "node:process";

import { defineConfig } from "vite";

// The libraries are chunks of their own, loaded when a view needs them. The entry holds the rest of the page. It also runs
// in Node, to draw a chart as a file, and in files that hold the page and one chart.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/regard/assets/page",
    emptyOutDir: true,
    target: "es2022",
    cssCodeSplit: false,
    modulePreload: false,
    chunkSizeWarningLimit: 2000,
  },
  // The Host header must not change: the server refuses requests whose Origin is not its own host.
  server: { proxy: { "/api": { target: env["REGARD_SERVER"] ?? "http://127.0.0.1:8765", changeOrigin: false } } },
});
