// The language and the colours that the user chose, kept by the browser.

export const stored = (name: string): string | null => {
  try {
    return window.localStorage.getItem(`regard.${name}`);
  } catch {
    return null;
  }
};
export const store = (name: string, value: string): void => {
  try {
    window.localStorage.setItem(`regard.${name}`, value);
  } catch {
    // the browser does not allow storage
  }
};
