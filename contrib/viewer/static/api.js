import { exported, exportedAnswer } from "./exported.js";

// Requests to the server, or to the data of an exported file.

export async function request(path, params, signal) {
  if (exported) return exportedAnswer(path, params || {});
  const entries = Object.entries(params || {}).filter(([, value]) => value !== "" && value != null);
  const url = `/api/${path}?${new URLSearchParams(entries)}`;
  const options = { signal, credentials: "same-origin", cache: "no-store" };
  // A browser ends its requests when the machine gets or loses a network.
  return answerOf(() => fetch(url, options).catch((error) => {
    if (error.name === "AbortError") throw error;
    return fetch(url, options);
  }));
}

// Sends something that changes the run: once.
export function send(path, body) {
  const headers = { "Content-Type": "application/json" };
  return answerOf(() => fetch(`/api/${path}`, { method: "POST", credentials: "same-origin", headers, body: JSON.stringify(body) }));
}

async function answerOf(ask) {
  let response;
  try {
    response = await ask();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw Object.assign(new Error("The server does not answer: forge-env view has ended."), { isLost: true });
  }
  if (response.status === 403) throw new Error(await response.text());
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || `The server answered ${response.status}.`);
  return answer;
}
