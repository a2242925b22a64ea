import { exported, exportedAnswer } from "./exported.js";

// Requests to the server, or to the data of an exported file.

export async function request(path, params, signal) {
  if (exported) return exportedAnswer(path, params || {});
  const entries = Object.entries(params || {}).filter(([, value]) => value !== "" && value != null);
  let response;
  try {
    const url = `/api/${path}?${new URLSearchParams(entries)}`;
    response = await fetch(url, { signal, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer: forge-env view has ended.");
  }
  if (response.status === 403) throw new Error(await response.text());
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || `The server answered ${response.status}.`);
  return answer;
}
