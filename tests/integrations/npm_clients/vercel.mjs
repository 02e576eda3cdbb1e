// Vercel's AI SDK: comes back to a run as `resume` of `useChat` does, and reads its message.
import { DefaultChatTransport, readUIMessageStream } from "ai";

const [api] = process.argv.slice(2);
const transport = new DefaultChatTransport({ prepareReconnectToStreamRequest: () => ({ api }) });
const failed = [];
const onError = (error) => void failed.push(String(error));
let message = null;
const stream = await transport.reconnectToStream({ chatId: "chat" });
for await (const each of readUIMessageStream({ stream, onError })) message = each;
console.log(JSON.stringify({ failed, message }));
