// Whether anything is still to come: an answer, a move of the map, a drawing, the writing of the address. The root of
// the page tells what, as data-ahead, so that whoever drives it (a test, a script that prints it) knows when to look:
// once that is empty.

type What = "address" | "answer" | "drawing" | "map" | "picture" | "pause" | "text";

const ahead = new Map<object, What>();

function tell(): void {
  document.documentElement.dataset["ahead"] = [...new Set(ahead.values())].join(" ");
}

/** Something is to come; `end` with the same object once it has. */
export function begin(thing: object, what: What): void {
  ahead.set(thing, what);
  tell();
}

export function end(thing: object): void {
  if (ahead.delete(thing)) tell();
}

/** A picture counts as there once it can be drawn; one that cannot be read is not waited for. */
export async function decoded(picture: HTMLImageElement): Promise<void> {
  begin(picture, "picture");
  await picture.decode().catch(() => undefined);
  end(picture);
}
