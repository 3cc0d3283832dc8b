// Replaces ELK in saved captures and notebooks, which have no charts (vite.config.ts).

export default class NoLayout {
  layout(): Promise<never> {
    return Promise.reject(new Error("this page was built without charts"));
  }
}
