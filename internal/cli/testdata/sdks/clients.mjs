// Calls the models of both services with the keys in the environment, and prints what they stream.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const messages = [{ role: "user", content: "Tell me a story." }];

let text = "";
const stream = new Anthropic().messages.stream({ model: "lab", max_tokens: 100, messages });
stream.on("text", (more) => (text += more));
await stream.finalMessage();
console.log("anthropic:", text);

text = "";
for await (const chunk of await new OpenAI().chat.completions.create({ model: "lab", messages, stream: true })) {
	text += chunk.choices[0].delta.content;
}
console.log("openai:", text);
