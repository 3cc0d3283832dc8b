// Tiles and thumbnails arrive as shades, one byte per pixel, in binary PGM files. Here they are read and coloured.

import { type Theme, ramp } from "./palette.ts";

interface Shades {
  width: number;
  height: number;
  /** One byte per pixel, row by row: 0 is the weakest weight of the scale, 255 the strongest. */
  pixels: Uint8Array;
}

/** Read a binary PGM file as the server writes it: "P5", width and height, the largest shade, then the pixels. */
export function readPgm(file: ArrayBuffer): Shades {
  const header = /^P5\n(\d+) (\d+)\n255\n/.exec(
    String.fromCharCode(...new Uint8Array(file, 0, Math.min(32, file.byteLength))),
  );
  if (!header) throw new Error("a tile must be a binary PGM file");
  const [width, height] = [Number(header[1]), Number(header[2])];
  const pixels = new Uint8Array(file, header[0].length);
  if (pixels.length !== width * height)
    throw new Error(`a tile of ${width} × ${height} pixels came with ${pixels.length}`);
  return { width, height, pixels };
}

/** The colours of shades, four bytes (red, green, blue, opacity) per pixel. */
export function coloured({ pixels }: Shades, theme: Theme): Uint8ClampedArray<ArrayBuffer> {
  const table = ramp(theme);
  const colours = new Uint8ClampedArray(4 * pixels.length);
  pixels.forEach((shade, index) => {
    const [red, green, blue] = table[shade]!;
    colours.set([red, green, blue, 255], 4 * index);
  });
  return colours;
}

/** Paint shades on a canvas, which takes their size. */
export function paintShades(canvas: HTMLCanvasElement, shades: Shades, theme: Theme): CanvasRenderingContext2D {
  [canvas.width, canvas.height] = [shades.width, shades.height];
  const context = canvas.getContext("2d")!;
  context.putImageData(new ImageData(coloured(shades, theme), shades.width, shades.height), 0, 0);
  return context;
}
