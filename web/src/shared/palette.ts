// Colours. Lightness grows evenly with the weight (in OKLab, where equal steps look equal): a map can be read in grey.

export type Theme = "light" | "dark";
export type Scale = "linear" | "log";

/** In OKLCH (lightness, chroma, hue), and in OKLab (lightness, a, b). */
type Stop = readonly [lightness: number, number, number];
const STOPS: Record<Theme, readonly Stop[]> = {
  light: [
    [0.985, 0.004, 90],
    [0.8, 0.09, 10],
    [0.58, 0.17, 5],
    [0.42, 0.15, 350],
    [0.27, 0.09, 320],
  ],
  dark: [
    [0.2, 0.01, 300],
    [0.4, 0.12, 330],
    [0.6, 0.19, 5],
    [0.78, 0.12, 35],
    [0.95, 0.05, 80],
  ],
};

export type Colour = [red: number, green: number, blue: number];

export function css(colour: Colour): string {
  return `rgb(${colour.join(",")})`;
}

/** Relative luminance (WCAG 2.2), from 0 for black to 1 for white. */
export function luminance(colour: Colour): number {
  const [red, green, blue] = colour.map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  }) as Colour;
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** The contrast ratio of two luminances (WCAG 2.2): text needs 4.5. */
export function contrast(one: number, other: number): number {
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
}

/** Black or white, whichever is easier to read on a colour. Its contrast is at least 4.58. */
export function contrasting(colour: Colour): "black" | "white" {
  const background = luminance(colour);
  return contrast(background, 0) >= contrast(background, 1) ? "black" : "white";
}

function channel(linear: number): number {
  const value = linear <= 0.0031308 ? 12.92 * linear : 1.055 * linear ** (1 / 2.4) - 0.055;
  return Math.round(255 * Math.min(1, Math.max(0, value)));
}

/** OKLab (Ottosson, 2020) to sRGB. */
function rgb(lightness: number, a: number, b: number): Colour {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    channel(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    channel(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    channel(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

function table(theme: Theme): Colour[] {
  const stops = STOPS[theme].map(([l, c, h]): Stop => {
    const angle = (h * Math.PI) / 180;
    return [l, c * Math.cos(angle), c * Math.sin(angle)];
  });
  const [first, last] = [stops[0]![0], stops.at(-1)![0]];
  return Array.from({ length: 256 }, (_, entry) => {
    const lightness = first + ((last - first) * entry) / 255;
    const after = stops.findIndex(
      ([l], index) => index > 0 && Math.abs(l - first) >= Math.abs(lightness - first) - 1e-9,
    );
    const [low, high] = [stops[after - 1]!, stops[after]!];
    const share = (lightness - low[0]) / (high[0] - low[0]);
    return rgb(lightness, low[1] + share * (high[1] - low[1]), low[2] + share * (high[2] - low[2]));
  });
}

const TABLES: Record<Theme, Colour[]> = { light: table("light"), dark: table("dark") };

/** 256 colours from nothing to the strongest. */
export function ramp(theme: Theme): Colour[] {
  return TABLES[theme];
}

/** Three decades: a weight of a thousandth of the strongest is the weakest that is seen on the log scale. */
const DECADES = 3;
export const WEAKEST = 10 ** -DECADES;

/** Colour intensity of a weight, in [0, 1]. */
export function shade(weight: number, strongest: number, scale: Scale): number {
  if (!(weight > 0) || !(strongest > 0)) return 0;
  const share = Math.min(1, weight / strongest);
  return scale === "linear" ? share : Math.max(0, 1 + Math.log10(share) / DECADES);
}
