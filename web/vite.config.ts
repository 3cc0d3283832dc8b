import { defineConfig } from "vite";

// `npx vite` serves the page while one works on it; the API comes from `python tests/view/fake_server.py --port 8765`.
export default defineConfig({
  base: "./",
  build: { outDir: "../src/regard/view/web/dist", emptyOutDir: true, target: "es2022", chunkSizeWarningLimit: 600 },
  server: { proxy: { "/api": { target: "http://127.0.0.1:8765", changeOrigin: true } } },
});
