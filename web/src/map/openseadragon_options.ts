// Options of OpenSeadragon.

import type OpenSeadragon from "openseadragon";

const MAX_CELL_SIZE = 48; // pixels per cell

export const OPTIONS: OpenSeadragon.Options = {
  drawer: "canvas",
  tabIndex: -1,
  keyboardNavEnabled: false,
  showNavigationControl: false,
  preserveViewport: true,
  animationTime: 0.35,
  springStiffness: 9,
  visibilityRatio: 0.5,
  minZoomImageRatio: 0.7,
  minPixelRatio: 1, // tiles are never shrunk: the strongest cell stays visible
  imageSmoothingEnabled: false,
  maxZoomPixelRatio: MAX_CELL_SIZE,
  maxImageCacheCount: 400,
  timeout: 300000,
  zoomPerScroll: 1.35,
  gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: true },
  gestureSettingsTouch: { clickToZoom: false, dblClickToZoom: true },
};

/** OpenSeadragon adds a style sheet, which the server's content security policy forbids, unless it finds an element of
 * this name. This one is empty. */
export function preventStyleSheet(): void {
  const name = "data-openseadragon-mobile-css";
  if (document.querySelector(`style[${name}]`)) return;
  const inert = document.createElementNS("urn:nothing", "style");
  inert.setAttribute(name, "true");
  document.head.append(inert);
}
