// Follows the pool's changes: waits for one, asks for the rows that have changed, and puts them
// into the tables. Sorts and filters these, and sends the form. The page works without it, too:
// then the browser loads it again every few seconds.
//
// The browser runs page.js, which `make page-script` makes of this file.

interface Row {
  section: string;
  name: string;
  html: string | null;
}

/** An answer of GET /page/rows. */
interface Changes {
  revision: string;
  more: boolean;
  rows: Row[];
  sections: { section: string; html: string }[];
}

/** The column by which a section's table is sorted. */
interface Order {
  column: number;
  isDown: boolean;
}

/** Revisions of before are no longer known. */
const GONE = 410;
const PAUSE_MS = 500;
const PAUSE_MS_MAX = 10_000;
const WATCH_MS = 5_000;
/** Time after which a question has no answer. */
const ANSWER_MS = 15_000;

const orders = new Map<string, Order>();
const compare = new Intl.Collator("en", { numeric: true }).compare;
const parser = new DOMParser();

function element<T extends Element>(selector: string): T {
  const found = document.querySelector<T>(selector);
  if (found === null) throw new Error(`the page has no ${selector}`);
  return found;
}

const main = element<HTMLElement>("main");
const live = element<HTMLElement>("#live");
const filter = document.createElement("input");

const pause = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

/** Asks the manager. The page's address may have a password, which addresses of requests cannot have. */
async function ask(path: string, more: RequestInit = {}): Promise<Response> {
  const signal = AbortSignal.timeout(WATCH_MS + ANSWER_MS);
  const answer = await fetch(new URL(path, location.origin), { cache: "no-store", signal, ...more });
  const isKnown = answer.ok || answer.status === GONE || answer.type === "opaqueredirect";
  if (!isKnown) throw new Error(await reason(answer));
  return answer;
}

async function reason(answer: Response): Promise<string> {
  const page = parser.parseFromString(await answer.text(), "text/html");
  return page.querySelector(".error")?.textContent ?? `the manager answers ${answer.status}`;
}

/** Loads the page, takes the sections that differ, and returns the revision that they show. */
async function load(): Promise<string> {
  const page = parser.parseFromString(await (await ask("/")).text(), "text/html");
  for (const part of page.querySelectorAll("main > section")) replace(part.id, part);
  return page.querySelector("main")?.dataset.revision ?? "";
}

/** Puts what is in an element into a section, unless it is there already. */
function replace(id: string, part: Element): void {
  const shown = document.getElementById(id);
  if (shown === null || shown.innerHTML === part.innerHTML) return;
  shown.replaceChildren(...part.childNodes);
  arrange(shown);
}

/** Returns the revision after what has changed; nothing if the page is to be loaded. */
async function take(revision: string): Promise<string | null> {
  for (;;) {
    const answer = await ask(`/page/rows?after=${encodeURIComponent(revision)}`);
    if (answer.status === GONE) return null;
    const changes: Changes = await answer.json();
    if (!changes.rows.every(put)) return null;
    for (const { section, html } of changes.sections) {
      replace(section, parser.parseFromString(html, "text/html").body);
    }
    for (const id of new Set(changes.rows.map((row) => row.section))) {
      arrange(element(`#${CSS.escape(id)}`));
    }
    revision = changes.revision;
    if (!changes.more) return revision;
  }
}

/** Puts a row into its table. Returns false if there is no such table, or it is left empty. */
function put({ section, name, html }: Row): boolean {
  const of = `#${CSS.escape(section)}`;
  const body = document.querySelector<HTMLTableSectionElement>(`${of} tbody`);
  if (body === null) return html === null;
  const shown = body.querySelector(`tr[data-name="${CSS.escape(name)}"]`);
  if (html === null) {
    shown?.remove();
    return body.rows.length > 0;
  }
  const made = parser.parseFromString(`<table><tbody>${html}</tbody></table>`, "text/html").querySelector("tr");
  if (made === null) return false;
  // A table that has as many rows as it may have is said to have more.
  if (shown === null && document.querySelector(`${of} .none`) !== null) return true;
  if (shown === null) body.append(made);
  else if (shown.innerHTML !== made.innerHTML) shown.replaceChildren(...made.childNodes);
  return true;
}

/** Sorts a section's table, and hides the rows that do not have all words of the filter. */
function arrange(section: Element): void {
  const body = section.querySelector("tbody");
  if (body === null) return;
  const rows = [...body.rows];
  const order = orders.get(section.id);
  section.querySelectorAll("th").forEach((title, column) => {
    title.tabIndex = 0;
    const isSorted = order?.column === column;
    title.ariaSort = isSorted ? (order.isDown ? "descending" : "ascending") : "none";
  });
  if (order !== undefined) {
    const text = (row: HTMLTableRowElement) => row.cells[order.column]?.textContent ?? "";
    const sorted = [...rows].sort((a, b) => compare(text(a), text(b)) * (order.isDown ? -1 : 1));
    if (sorted.some((row, at) => row !== rows[at])) body.append(...sorted);
  }
  const words = filter.value.toLowerCase().split(/\s+/);
  for (const row of rows) {
    const text = row.textContent?.toLowerCase() ?? "";
    row.hidden = !words.every((word) => text.includes(word));
  }
}

function arrangeAll(): void {
  for (const section of main.querySelectorAll("section")) arrange(section);
}

/** Sorts by the column of a title: upwards, downwards, and then as the manager has it. */
function sortBy(title: Element): void {
  const section = title.closest("section");
  if (section === null || !(title instanceof HTMLTableCellElement)) return;
  const [column, before] = [title.cellIndex, orders.get(section.id)];
  if (before?.column !== column) orders.set(section.id, { column, isDown: false });
  else if (!before.isDown) orders.set(section.id, { column, isDown: true });
  else {
    orders.delete(section.id);
    restart();
  }
  arrange(section);
}

/** Sends the form without leaving the page. An operator's token is asked for each time. */
async function send(form: HTMLFormElement, button: HTMLElement | null): Promise<void> {
  const fields = new URLSearchParams();
  for (const [name, value] of new FormData(form, button)) fields.append(name, String(value));
  try {
    // A button has the name "action".
    await ask(form.getAttribute("action") ?? "", { method: "POST", body: fields, redirect: "manual" });
    said.textContent = "done";
  } catch (error) {
    said.textContent = String(error instanceof Error ? error.message : error);
  }
  const token = form.querySelector<HTMLInputElement>("[name=token]");
  if (token !== null) token.value = "";
}

/** The revision that the tables show; nothing if they are to be loaded. */
let revision: string | null = main.dataset.revision ?? null;

/** Has the tables loaded as the manager has them. */
function restart(): void {
  revision = null;
}

async function follow(): Promise<void> {
  let [wait, waitMs] = [PAUSE_MS, 0];
  for (;;) {
    try {
      // Without a change the picture of the time goes on.
      const before = revision;
      if (before !== null) {
        await (await ask(`/v1/watch?after=${encodeURIComponent(before)}&wait_ms=${waitMs}`)).text();
      }
      if (revision !== null) revision = await take(revision);
      if (revision === null) {
        revision = await load();
        arrangeAll();
      }
      live.textContent = "live";
      [wait, waitMs] = [PAUSE_MS, WATCH_MS];
      await pause(PAUSE_MS);
    } catch (error) {
      live.textContent = `not live: ${error instanceof Error ? error.message : String(error)}`;
      wait = Math.min(2 * wait, PAUSE_MS_MAX);
      await pause(wait);
    }
  }
}

filter.type = "search";
filter.placeholder = "filter rows";
filter.ariaLabel = "filter rows";
filter.addEventListener("input", arrangeAll);
live.after(filter);
const said = document.createElement("span");
said.setAttribute("role", "status");
main.addEventListener("click", (event) => {
  const title = event.target instanceof Element ? event.target.closest("th") : null;
  if (title !== null) sortBy(title);
});
main.addEventListener("keydown", (event) => {
  const title = event.target instanceof Element ? event.target.closest("th") : null;
  if (title !== null && event.key === "Enter") sortBy(title);
});
const form = element<HTMLFormElement>("form");
form.append(said);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  void send(form, event.submitter);
});
arrangeAll();
void follow();
