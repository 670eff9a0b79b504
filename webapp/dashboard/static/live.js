// Fetches the page again every five seconds and replaces the parts that changed; the server escapes all text.
"use strict";

const live = document.getElementById("live");
const statusText = document.getElementById("live-text");
const EVERY_MS = 5000; // fresh enough to watch; the server reads the database at most once in four seconds for all pages

async function refresh() {
  const headers = { Accept: "text/html", "X-Magnus-Live": "1" };
  const answer = await fetch(location.href, { headers, signal: AbortSignal.timeout(10000) });
  if (answer.status === 401) return location.reload(); // the session is over: the page to sign in on comes
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const asOf = fresh.getElementById("part-state").dataset.now; // before the parts leave this document for the page's
  for (const part of fresh.querySelectorAll("[id^=part-]")) {
    const shown = document.getElementById(part.id);
    if (!shown || part.outerHTML === shown.outerHTML || shown.contains(document.activeElement)) continue;
    const scrolled = [...shown.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
    shown.replaceWith(document.adoptNode(part));
    [...part.querySelectorAll(".scroll")].forEach((box, n) => { box.scrollLeft = scrolled[n] ?? 0; });
  }
  statusText.textContent = `as of ${asOf} UTC`;
  live.classList.remove("lost");
}

async function keepFresh() {
  if (!document.hidden) {
    try {
      await refresh();
    } catch (error) {
      statusText.textContent = `no answer (${error.message}); trying again`;
      live.classList.add("lost");
    }
  }
  setTimeout(keepFresh, EVERY_MS);
}

setTimeout(keepFresh, EVERY_MS);
