// The top of the page: title, views, language and colours.

import { Menu } from "../shared/controls.tsx";
import { LANGUAGES, type Language } from "../shared/translations.ts";
import type { Store, ThemeChoice } from "./store.ts";
import { write } from "./url_state.ts";

export function Header({ app, alone }: { app: Store; alone: boolean }) {
  const { words } = app;
  const languages = (Object.keys(LANGUAGES) as Language[]).map((name): [Language, string] => [
    name,
    LANGUAGES[name].language,
  ]);
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
  const { words, state } = app;
  if (app.explains) {
    return (
      <nav aria-label={words.navigation}>
        <a href="./">{words.explain.maps}</a>
        <a href="#" aria-current="page">
          {words.explain.title}
        </a>
      </nav>
    );
  }
  return (
    <nav aria-label={words.navigation}>
      {app.views().map((view) => (
        <a
          key={view}
          href={write(app.sound({ ...state, view }))}
          aria-current={view === state.view ? "page" : undefined}>
          {words.views[view]}
        </a>
      ))}
      <a href="explain.html">{words.explain.title}</a>
    </nav>
  );
}
