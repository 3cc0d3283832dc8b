// The page of `regard explain`: a chart that opens and closes, step by step. In Node, without a page, it draws a file.

import { type Wish, svg } from "./file.ts";

async function print(): Promise<void> {
  const { stdin, stdout } = process;
  let text = "";
  stdin.setEncoding("utf8");
  for await (const part of stdin) text += part;
  stdout.write(await svg(JSON.parse(text) as Wish));
}

if (typeof document === "undefined") await print();
else {
  const { Explainer } = await import("./page.ts");
  await new Explainer().start();
}
