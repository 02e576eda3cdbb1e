// AG-UI's own client: joins a run, goes away, and joins again; at last it stays, and says yes to every question.
import { HttpAgent } from "@ag-ui/client";

const [url, joins, stay] = process.argv.slice(2);
const agent = new HttpAgent({ url, threadId: "thread" });
agent.messages = [{ id: "mine", role: "user", content: "hello" }];
const failed = [], seen = [];
const subscriber = {
  onRunFailed: ({ error }) => void (error.name === "AbortError" || failed.push(String(error))),
  onRunErrorEvent: ({ event }) => void (event.message.endsWith("aborted") || failed.push(event.message)),
  onEvent: ({ event }) => void seen.push(event.type),
};
for (let n = 0; n < joins; n++) {
  const timer = setTimeout(() => agent.abortRun(), Number(stay));
  await agent.runAgent({ runId: `join-${n}` }, subscriber);
  clearTimeout(timer);
}
await agent.runAgent({ runId: "stays" }, subscriber);
const questions = agent.pendingInterrupts.map(({ message }) => message);
if (questions.length) {
  const resume = agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload: true }));
  await agent.runAgent({ runId: "answers", resume }, subscriber);
}
console.log(JSON.stringify({ failed, seen, questions, messages: agent.messages }));
