// A page that a server keeps: ask for its version, and put a newer page in the place of this one.
const EVERY = 2000;
let version = document.documentElement.dataset.live;
const badge = () => document.getElementById("live");

function say(text, state) {
  badge().textContent = text;
  badge().dataset.state = state;
}

async function poll() {
  try {
    const answer = await (await fetch("version", { cache: "no-store" })).json();
    if (answer.version !== version) {
      await renew();
      version = answer.version;
    }
    const time = new Date().toLocaleTimeString();
    say(answer.problem || `Live · ${time}`, answer.problem ? "problem" : "on");
  } catch {
    say("Not connected: fedcraft watch has ended", "off");
  }
  setTimeout(poll, document.hidden ? 5 * EVERY : EVERY);
}

async function renew() {
  const text = await (await fetch("./", { cache: "no-store" })).text();
  const next = new DOMParser().parseFromString(text, "text/html");
  const shown = document.documentElement.dataset;
  if (next.documentElement.dataset.live === shown.live) return; // the last page that could be made
  shown.live = next.documentElement.dataset.live;
  if (typeof adopt === "function" && next.getElementById("data")) adopt(next);
  else location.reload();
}

if (version) setTimeout(poll, EVERY);
