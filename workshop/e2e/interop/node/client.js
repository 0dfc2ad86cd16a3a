// The client of interop_test.go in JavaScript. Arguments: the service's address, and that of one that cannot decide.
'use strict';

const path = require('path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const NAME = 'node';
const PATIENCE = 60_000; // milliseconds, for calls that shall succeed

const [address, stuck] = process.argv.slice(2);
const protos = ['../../../../examples/typescript/ratelimit.proto', 'health.proto'].map((f) => path.join(__dirname, f));
const root = grpc.loadPackageDefinition(loader.loadSync(protos, { enums: String, keepCase: true, defaults: true }));
const { RateLimitService } = root.envoy.service.ratelimit.v3;
const { Health } = root.grpc.health.v1;

// ask is a request with one descriptor for each value.
function ask(key, ...values) {
  return { domain: 'interop', descriptors: values.map((value) => ({ entries: [{ key, value }] })) };
}

// call makes a call and returns its answer, or the error.
function call(client, method, request, { timeout = PATIENCE, metadata = new grpc.Metadata(), use = () => {} } = {}) {
  return new Promise((resolve) => {
    use(client[method](request, metadata, { deadline: Date.now() + timeout }, (error, answer) => resolve(error || answer)));
  });
}

// callUnknown calls a method that the service does not have, and returns the error.
function callUnknown(client) {
  const { requestSerialize, responseDeserialize } = RateLimitService.service.ShouldRateLimit;
  const method = '/envoy.service.ratelimit.v3.RateLimitService/NoSuchMethod';
  return new Promise((resolve) => {
    client.makeUnaryRequest(method, requestSerialize, responseDeserialize, ask('open', NAME), { deadline: Date.now() + PATIENCE }, resolve);
  });
}

// code is the answer's code, or the status of a call that failed.
const code = (result) => (result instanceof Error ? grpc.status[result.code] : result.overall_code);

const nextLine = () => new Promise((resolve) => { process.stdin.once('data', resolve); });

const say = (step, text) => console.log(`${step}: ${text}`);

const tally = (codes) => {
  const counts = {};
  for (const c of codes) counts[c] = (counts[c] || 0) + 1;
  return Object.keys(counts).sort().map((c) => `${c} ${counts[c]}`).join(', ');
};

async function oneByOne(client, checker) {
  say('unary', code(await call(client, 'ShouldRateLimit', ask('open', NAME))));

  const invalid = await call(client, 'ShouldRateLimit', {});
  say('invalid', `${code(invalid)} ${invalid.details}`);

  say('unknown method', code(await callUnknown(client)));

  const zipping = new RateLimitService(address, grpc.credentials.createInsecure(), { 'grpc.default_compression_algorithm': 2 });
  say('gzip', code(await call(zipping, 'ShouldRateLimit', ask('open', NAME.repeat(1000)))));
  zipping.close();

  const metadata = new grpc.Metadata();
  metadata.set('x-long', 'v'.repeat(8000));
  metadata.set('x-some-bin', Buffer.from(Array.from({ length: 256 }, (_, i) => i)));
  say('metadata', code(await call(client, 'ShouldRateLimit', ask('open', NAME), { metadata })));

  const values = Array.from({ length: 256 }, (_, i) => `${NAME} ${i}` + 'v'.repeat(4096));
  const many = await call(client, 'ShouldRateLimit', ask('open', ...values));
  say('1 MiB in 256 descriptors', `${code(many)} ${(many.statuses || []).length}`);

  for (const [step, service] of [['health', ''], ['health of another service', 'no.such.Service']]) {
    const answer = await call(checker, 'Check', { service });
    say(step, answer instanceof Error ? grpc.status[answer.code] : answer.status);
  }
}

async function atOnce(client) {
  const calls = Array.from({ length: 1000 }, () => call(client, 'ShouldRateLimit', ask('some', NAME)));
  say('1,000 at once', tally((await Promise.all(calls)).map(code)));
}

// withoutAnswer begins when a line comes in: then Redis hangs. After a second of silence the service takes it for dead.
async function withoutAnswer(client) {
  await nextLine();
  const late = call(client, 'ShouldRateLimit', ask('open', NAME), { timeout: 300 });
  const use = (c) => setTimeout(() => c.cancel(), 100);
  const cancelled = call(client, 'ShouldRateLimit', ask('open', NAME), { use });
  say('deadline', code(await late));
  say('cancel', code(await cancelled));
}

// drain makes 16 calls at a time until a line comes in. Meanwhile the service is replaced.
async function drain(client, checker) {
  const watch = checker.Watch({ service: '' });
  watch.on('error', () => {}); // it ends with the service
  const statuses = watch[Symbol.asyncIterator]();
  say('watch', (await statuses.next()).value.status);

  let stopped = false;
  nextLine().then(() => { stopped = true; });
  const codes = [];
  const caller = async () => {
    while (!stopped) codes.push(code(await call(client, 'ShouldRateLimit', ask('load', NAME))));
  };
  const callers = Array.from({ length: 16 }, caller);
  say('watch', (await statuses.next()).value.status);
  watch.cancel();
  await Promise.all(callers);
  say('load', tally(codes));
}

async function main() {
  const client = new RateLimitService(address, grpc.credentials.createInsecure());
  const checker = new Health(address, grpc.credentials.createInsecure());
  await oneByOne(client, checker);
  await atOnce(client);
  await withoutAnswer(new RateLimitService(stuck, grpc.credentials.createInsecure()));
  await drain(client, checker);
}

main().then(() => process.exit(0), (error) => { console.error(error); process.exit(1); });
