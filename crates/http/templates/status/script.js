// Keeps an open page up to date: reloads its content when the controller reports a change, and updates the ages of
// times. Without it the page has to be reloaded.
"use strict";
(() => {
  const events = document.currentScript.dataset.events;
  const pause = 1000; // minimum between two updates
  const pollPause = 15000; // between two updates without an event stream
  let busy = false;
  let again = false;

  const live = (text) => { document.getElementById("live").textContent = text; };
  // The controller's clock minus ours, so that the clock goes on while nothing changes. It stands still where nothing is known.
  let ahead = 0;
  let isLive = true;
  const measure = (page) => { ahead = Number(page.getElementById("clock").dataset.now) - Date.now(); };
  const lost = (text) => { isLive = false; live(text + " of"); };
  function tick() {
    if (isLive) document.getElementById("clock").textContent = new Date(Date.now() + ahead).toISOString().slice(11, 19) + " UTC";
  }

  async function renew() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(10000) });
      if (answer.ok) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const part of [".who", "main", "footer"]) replace(part, fresh);
        document.title = fresh.title;
        measure(fresh);
        isLive = true;
        live("live,");
      } else {
        lost(answer.status === 404 ? "it does not exist any more; this is the last known state, as" : "the controller returned status " + answer.status + "; this is the state, as");
      }
    } catch {
      lost("the controller does not respond; this is the last known state, as");
    }
    setTimeout(() => { busy = false; if (again) { again = false; renew(); } }, pause);
  }

  // Keeps selected text and the focus.
  function replace(name, fresh) {
    const old = document.querySelector(name);
    const next = fresh.querySelector(name);
    if (!next || String(getSelection()).trim()) return;
    const focus = old.contains(document.activeElement) ? document.activeElement : null;
    const key = focus && (focus.getAttribute("href") || focus.getAttribute("aria-label"));
    // What is being typed into the filter stays.
    const typed = focus && focus.id === "q" ? focus : null;
    const scrolled = [...old.querySelectorAll(".table")].map((it) => it.scrollLeft);
    old.replaceChildren(...next.childNodes);
    [...old.querySelectorAll(".table")].forEach((it, index) => { it.scrollLeft = scrolled[index] || 0; });
    if (typed) {
      old.querySelector("#q").replaceWith(typed);
      typed.focus({ preventScroll: true });
    } else if (key) {
      const same = (it) => it.getAttribute("href") === key || it.getAttribute("aria-label") === key;
      const found = [...old.querySelectorAll("a, [tabindex]")].find(same);
      if (found) found.focus({ preventScroll: true });
    }
  }

  // As the controller writes it.
  function length(seconds) {
    const units = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
    const largest = units.findIndex(([unit]) => seconds >= unit);
    let text = "";
    for (const [unit, name] of units.slice(largest, largest + 2)) {
      if (seconds >= unit) text += Math.floor(seconds / unit) + name;
      seconds %= unit;
    }
    return text;
  }

  function grow() {
    for (const time of document.querySelectorAll("time")) {
      const ago = time.querySelector(".ago");
      const seconds = Math.floor((Date.now() + ahead - Date.parse(time.dateTime)) / 1000);
      if (ago) ago.textContent = seconds < 1 ? "(just now)" : "(" + length(seconds) + " ago)";
    }
    for (const left of document.querySelectorAll(".left")) {
      const seconds = Math.ceil((Date.parse(left.dataset.until) - Date.now() - ahead) / 1000);
      left.textContent = seconds > 0 ? "in " + length(seconds) : "now";
    }
  }

  function listen() {
    const source = new EventSource(events);
    source.addEventListener("changed", renew);
    source.onerror = () => {
      // After an error response the browser does not reconnect by itself.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => { renew(); listen(); }, pollPause);
      else lost("connection to the controller lost; this is the last known state, as");
    };
  }

  measure(document);
  setInterval(grow, 5000);
  setInterval(tick, 1000);
  live("live,");
  listen();
})();
