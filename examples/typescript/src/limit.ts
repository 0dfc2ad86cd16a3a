// Asks ratelimitd whether a request may pass: limit DOMAIN KEY=VALUE [KEY=VALUE...]
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import * as grpc from '@grpc/grpc-js';
import * as loader from '@grpc/proto-loader';
import type { ProtoGrpcType } from './generated/ratelimit.js';
import type { RateLimitServiceClient } from './generated/envoy/service/ratelimit/v3/RateLimitService.js';
import type { RateLimitResponse__Output as Response } from './generated/envoy/service/ratelimit/v3/RateLimitResponse.js';

const proto = fileURLToPath(new URL('../ratelimit.proto', import.meta.url));
// The same options as in package.json, where the types are made.
const loaded = loader.loadSync(proto, { keepCase: true, longs: Number, enums: String, defaults: true });
const { RateLimitService } = (grpc.loadPackageDefinition(loaded) as unknown as ProtoGrpcType).envoy.service.ratelimit.v3;

const options: grpc.ChannelOptions = {
  // Uses every address behind the name in turn.
  'grpc.service_config': JSON.stringify({ loadBalancingConfig: [{ round_robin: {} }] }),
  // Notices within 15 seconds that a connection is dead.
  'grpc.keepalive_time_ms': 10_000,
  'grpc.keepalive_timeout_ms': 5_000,
  'grpc.keepalive_permit_without_calls': 1,
};

type Entry = { key: string; value: string };

type Answer =
  | { kind: 'allowed'; waitMs: number } // the request passes when it has waited so long
  | { kind: 'denied'; retryAfter: number } // it can be tried again after so many seconds
  | { kind: 'not limited'; reason: string }; // there is no decision

// Limits asks ratelimitd. Make one for the whole process: its connection carries all calls.
class Limits {
  readonly #client: RateLimitServiceClient;
  readonly #domain: string;
  readonly #deadlineMs: number; // bounds the time that a decision adds to a request

  constructor(address: string, domain: string, deadlineMs: number) {
    this.#client = new RateLimitService(address, grpc.credentials.createInsecure(), options);
    this.#domain = domain;
    this.#deadlineMs = deadlineMs;
  }

  // connect connects while the process starts, with a call that no rule counts. The first request then need not wait for that.
  async connect(withinMs: number): Promise<void> {
    try {
      await this.#call([{ key: 'connect', value: '' }], withinMs, true);
    } catch (error) {
      console.warn(`no connection to ratelimitd yet: ${reasonOf(error)}`);
    }
  }

  async ask(entries: Entry[]): Promise<Answer> {
    let response: Response;
    let header: grpc.Metadata;
    try {
      [response, header] = await this.#call(entries, this.#deadlineMs, false);
    } catch (error) {
      // Fails open: a limit protects a service and must not take it down. To fail closed: kind 'denied'.
      const reason = reasonOf(error);
      console.warn(`not limited: ${reason}`);
      return { kind: 'not limited', reason };
    }
    if (response.overall_code === 'OVER_LIMIT') {
      return { kind: 'denied', retryAfter: retryAfter(response) };
    }
    const [delay] = header.get('x-ratelimit-delay-ms'); // of a leaky bucket
    return { kind: 'allowed', waitMs: Number(delay ?? 0) };
  }

  #call(entries: Entry[], withinMs: number, waitForReady: boolean): Promise<[Response, grpc.Metadata]> {
    return new Promise((resolve, reject) => {
      let header = new grpc.Metadata();
      const call = this.#client.ShouldRateLimit(
        { domain: this.#domain, descriptors: [{ entries }] },
        new grpc.Metadata({ waitForReady }),
        { deadline: Date.now() + withinMs },
        (error, response) => (response ? resolve([response, header]) : reject(error)),
      );
      call.on('metadata', (received) => { header = received; });
    });
  }

  close(): void {
    this.#client.close();
  }
}

const reasonOf = (error: unknown): string => {
  const { code, details } = error as grpc.ServiceError;
  return `${grpc.status[code]}: ${details}`;
};

// retryAfter is the seconds of the header Retry-After, if the domain has that header, else the time until the limit is reset.
function retryAfter(response: Response): number {
  const header = response.response_headers_to_add.find((h) => h.key.toLowerCase() === 'retry-after');
  if (header) {
    return Number(header.value);
  }
  const resets = response.statuses.filter((s) => s.code === 'OVER_LIMIT').map((s) => s.duration_until_reset);
  return Math.max(0, ...resets.map((d) => (d ? d.seconds + Math.ceil(d.nanos / 1e9) : 0)));
}

async function main(): Promise<number> {
  const [domain, ...pairs] = process.argv.slice(2);
  const entries = pairs.map((pair) => ({ key: pair.split('=', 1)[0]!, value: pair.slice(pair.indexOf('=') + 1) }));
  if (!domain || pairs.length === 0 || !pairs.every((pair) => pair.includes('='))) {
    console.error('usage: limit DOMAIN KEY=VALUE [KEY=VALUE...]');
    return 2;
  }
  const { LIMIT_ADDRESS = 'dns:///localhost:8081', LIMIT_DEADLINE_MS = '20' } = process.env;
  const limits = new Limits(LIMIT_ADDRESS, domain, Number(LIMIT_DEADLINE_MS));
  await limits.connect(1000);
  const answer = await limits.ask(entries);
  limits.close();
  switch (answer.kind) {
    case 'denied':
      console.log(`denied, retry after ${answer.retryAfter} s`);
      return 1;
    case 'allowed':
      await sleep(answer.waitMs);
      console.log('allowed');
      return 0;
    case 'not limited':
      console.log(`not limited: ${answer.reason}`);
      return 0;
  }
}

process.exitCode = await main();
