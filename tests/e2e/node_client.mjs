// OpenAI's client for Node against a server: each scenario prints what the client made of the answer, as JSON.
// node node_client.mjs PACKAGE BASE_URL SCENARIO
const [place, baseURL, scenario] = process.argv.slice(2);
const { default: OpenAI } = await import(place);
const client = new OpenAI({ apiKey: 'none', baseURL, maxRetries: 0, timeout: 30_000 });

const parameters = { type: 'object', properties: { path: { type: 'string' } }, required: ['path'] };
const chat = {
  model: 'mock',
  max_tokens: 300,
  tools: [{ type: 'function', function: { name: 'read_file', parameters } }],
};
const responses = {
  model: 'mock',
  max_output_tokens: 300,
  tools: [{ type: 'function', name: 'read_file', parameters, strict: true }],
};
const ask = (content) => [{ role: 'user', content }];

async function refused(call) {
  try {
    await call();
  } catch (error) {
    const { status, code, param, type } = error;
    return { kind: error.constructor.name, status, code, param, type };
  }
  return { kind: 'none' };
}

const scenarios = {
  async chat_whole() {
    return client.chat.completions.create({ ...chat, messages: ask('look into the file') });
  },
  async chat_streamed() {
    const stream = client.chat.completions.stream({
      ...chat,
      messages: ask('look into the file'),
      stream_options: { include_usage: true },
    });
    let reasoning = '';
    stream.on('chunk', (chunk) => (reasoning += chunk.choices[0]?.delta.reasoning_content ?? ''));
    const whole = await stream.finalChatCompletion();
    whole.choices[0].message.reasoning_content = reasoning; // of fields that it does not know it keeps the last piece
    return whole;
  },
  async chat_tools_run() {
    const seen = [];
    const runner = client.chat.completions.runTools({
      model: 'mock',
      max_tokens: 300,
      stream: true,
      messages: ask('look into the file'),
      tools: [
        {
          type: 'function',
          function: {
            name: 'read_file',
            parameters,
            parse: JSON.parse,
            function: (given) => {
              seen.push(given);
              return 'the file says 42';
            },
          },
        },
      ],
    });
    return { content: await runner.finalContent(), seen };
  },
  async completion_streamed() {
    let text = '';
    let reason = null;
    const body = { model: 'mock', prompt: 'count to four', max_tokens: 300, stream: true };
    for await (const chunk of await client.completions.create(body)) {
      text += chunk.choices[0].text;
      reason = chunk.choices[0].finish_reason ?? reason;
    }
    return { text, reason };
  },
  async response_whole() {
    return client.responses.create({ ...responses, input: 'look into the file' });
  },
  async response_streamed() {
    return client.responses.stream({ ...responses, input: 'look into the file' }).finalResponse();
  },
  async models() {
    const found = [];
    for await (const model of client.models.list()) found.push(model.id);
    return { found, one: (await client.models.retrieve('mock')).id };
  },
  async errors() {
    return {
      model: await refused(() => client.chat.completions.create({ ...chat, model: 'nope', messages: ask('x') })),
      field: await refused(() =>
        client.chat.completions.create({ ...chat, temperature: 9, messages: ask('x'), stream: true }),
      ),
      response: await refused(() => client.responses.create({ ...responses, input: 'x', store: true })),
      path: await refused(() => client.post('/no/such/path')),
    };
  },
  async embeddings() {
    const answer = await client.embeddings.create({ model: 'mock', input: [[300, 301], [302]] });
    return answer.data.map((item) => item.embedding);
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
