// The top of the page: title, views, language and colours.

import { Menu } from "../shared/controls.tsx";
import { LANGUAGES, type Language } from "../shared/translations.ts";
import type { Store, ThemeChoice } from "./store.ts";
import { write } from "./url_state.ts";

export function Header({ app, alone }: { app: Store; alone: boolean }) {
  const { words } = app;
  const names = Object.keys(LANGUAGES) as Language[];
  const languages = names.map((name): [Language, string] => [name, LANGUAGES[name].language]);
  const skip = (event: Event): void => {
    event.preventDefault();
    document.getElementById("view")?.focus();
  };
  return (
    <header class="top">
      <a class="skip" href="#view" onClick={skip}>
        {words.skip}
      </a>
      <div class="brand">
        <b>regard</b>
        <span title={app.title}>{app.title}</span>
      </div>
      {!alone && <Navigation app={app} />}
      <div class="switches">
        <Menu label={words.languageLabel} options={languages} value={app.language} choose={(name) => app.speak(name)} />
        <Menu
          label={words.themeLabel}
          options={Object.entries(words.theme) as [ThemeChoice, string][]}
          value={app.themeChoice}
          choose={(theme) => app.choose(theme)}
        />
        {!app.explains && (
          <button type="button" class="plain" aria-keyshortcuts="?" onClick={() => app.help(true)}>
            ? {words.help}
          </button>
        )}
      </div>
    </header>
  );
}

function Navigation({ app }: { app: Store }) {
  const { words, state, explains } = app;
  const current = (here: boolean) => (here ? "page" : undefined);
  return (
    <nav aria-label={words.navigation}>
      {explains && <a href="./">{words.explain.maps}</a>}
      {app.views().map((view) => (
        <a key={view} href={write(app.sound({ ...state, view }))} aria-current={current(view === state.view)}>
          {words.views[view]}
        </a>
      ))}
      <a href={explains ? "#" : "explain.html"} aria-current={current(explains)}>
        {words.explain.title}
      </a>
    </nav>
  );
}
