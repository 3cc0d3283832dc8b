// Translations of the page. English defines the keys: a language without one of them does not compile.

import en from "./words.en.json" with { type: "json" };
import zh from "./words.zh.json" with { type: "json" };

export type Words = typeof en;
export const LANGUAGES = { en, zh } satisfies Record<string, Words>;
export type Language = keyof typeof LANGUAGES;
/** The description of a request, in the language of the page while it is shown. */
export type WorkLabel = (words: Words) => string;

/** A text with values for its placeholders: "head {head}", and in English "{all} {all:head|heads}". */
export function fill(text: string, values: Record<string, string | number>): string {
  return text.replace(/\{(\w+)(?::(\w+)\|(\w+))?\}/g, (_, name: string, one?: string, several?: string) => {
    const value = String(values[name]);
    return (value === "1" ? one : several) ?? value;
  });
}

/** The first preferred language of the user that is available. */
export function preferred(wanted: readonly string[]): Language {
  for (const tag of wanted) {
    const language = (Object.keys(LANGUAGES) as Language[]).find((name) => tag.toLowerCase().split("-")[0] === name);
    if (language) return language;
  }
  return "en";
}
