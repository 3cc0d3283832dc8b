// The top of the page: title, views, language and colours.

import { Menu } from "../shared/controls.tsx";
import { LANGUAGES, type Language } from "../shared/translations.ts";
import { modified } from "../shared/format.ts";
import type { Store, ThemeChoice } from "./store.ts";
import type { View } from "./url_state.ts";

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
  const link = (view: View | "explain", name: string) => {
    const [here, address] = [explains ? view === "explain" : view === state.view, app.address(view)];
    const go = (event: MouseEvent): void => {
      if (modified(event) || event.shiftKey) return; // another tab or window
      event.preventDefault();
      if (!here || explains) app.visit(address);
    };
    return (
      <a key={view} href={address} aria-current={here ? "page" : undefined} onClick={go}>
        {name}
      </a>
    );
  };
  return (
    <nav aria-label={words.navigation}>
      {app.views().map((view) => link(view, words.views[view]))}
      {!app.embedding.viewsOnly && link("explain", words.explain.title)}
    </nav>
  );
}
