// Follows the pool's changes, and shows the page's tables anew when there are some. The page works
// without it, too: then the browser loads it again every few seconds.
"use strict";

const PAUSE_MS = 500;
const PAUSE_MS_MAX = 10_000;
const WATCH_MS = 20_000;

const live = document.getElementById("live");
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Asks the manager. The page's address may have a password, which addresses of requests cannot have. */
async function ask(path) {
  const answer = await fetch(new URL(path, location.origin), { cache: "no-store" });
  if (!answer.ok && answer.status !== 410) throw new Error(`the manager answers ${answer.status}`);
  return answer;
}

/** Loads the page, takes the parts that differ, and returns the revision that it shows. */
async function load() {
  const answer = await ask("/");
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of page.querySelectorAll("main > section")) {
    const shown = document.getElementById(part.id);
    if (shown && shown.innerHTML !== part.innerHTML) shown.replaceChildren(...part.childNodes);
  }
  return page.querySelector("main").dataset.revision;
}

/** Waits for a change after the revision, or for some time. */
async function changed(revision, waitMs) {
  await (await ask(`/v1/watch?after=${encodeURIComponent(revision)}&wait_ms=${waitMs}`)).text();
}

async function follow() {
  let revision = document.querySelector("main").dataset.revision;
  let [wait, waitMs] = [PAUSE_MS, 0];
  for (;;) {
    try {
      // Without a change the picture of the time goes on.
      if (revision !== null) await changed(revision, waitMs);
      revision = await load();
      live.textContent = "live";
      [wait, waitMs] = [PAUSE_MS, WATCH_MS];
      await pause(PAUSE_MS);
    } catch (error) {
      live.textContent = `not live: ${error.message}`;
      revision = null;
      wait = Math.min(2 * wait, PAUSE_MS_MAX);
      await pause(wait);
    }
  }
}

follow();
