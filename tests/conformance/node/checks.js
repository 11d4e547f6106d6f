// A client that knows nothing of Lockstep but protos/: declares queues, runs one transaction and reads the committed events.
// Usage: node checks.js '{"protos": "DIRECTORY", "addresses": ["HOST:PORT"], "set": "NAME"}'; a JSON line for each check.
'use strict';

const assert = require('node:assert');
const crypto = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const given = JSON.parse(process.argv[2]);
const CALL_MS = 20000;
const folder = 'lockstep/wire/v1';
const files = fs.readdirSync(path.join(given.protos, folder)).map((name) => path.join(folder, name));
const definition = loader.loadSync(files, {
  includeDirs: [given.protos], keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true,
});
const wire = grpc.loadPackageDefinition(definition).lockstep.wire.v1;
const clients = [];

function client(service, address) {
  clients.push(new wire[service](address, grpc.credentials.createInsecure()));
  return clients.at(-1);
}

function call(target, method, request) {
  return new Promise((resolve, reject) => {
    target[method](request, { deadline: Date.now() + CALL_MS }, (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

async function check(what, find) {
  let error = '';
  try {
    await find();
  } catch (thrown) {
    error = String(thrown && thrown.stack || thrown) || 'failed';
  }
  console.log(JSON.stringify({ check: what, error }));
}

// The answer of one command on a session stream of its own.
function command(address, message) {
  const stream = client('Sessions', address).Open({ deadline: Date.now() + CALL_MS });
  const attach = { session_id: crypto.randomUUID(), timeout_ms: 5000 };
  stream.write({ resource_set: given.set, messages: [{ attach }, { number: 1, ...message }] });
  return new Promise((resolve, reject) => {
    stream.on('error', reject);
    stream.on('end', () => reject(new Error('the stream ended without an answer')));
    stream.on('data', (response) => {
      for (const one of response.messages) {
        if (one.message === 'attach_refused') reject(new Error(JSON.stringify(one.attach_refused)));
        if (one.message !== 'answers') continue;
        const place = one.answers.numbers.indexOf(1);
        if (place < 0) continue;
        resolve({ code: one.answers.codes[place] || 0, text: one.answers.messages[place] || '' });
        stream.write({ resource_set: given.set, messages: [{ detach: {} }] });
        stream.end();
      }
    });
  });
}

function read(address, start, to) {
  return new Promise((resolve, reject) => {
    const batches = [];
    const stream = client('Events', address).Read({ start, to }, { deadline: Date.now() + CALL_MS });
    stream.on('error', reject);
    stream.on('data', (batch) => batches.push(batch));
    stream.on('end', () => resolve(batches));
  });
}

function bodiesOf(batch) {
  let place = 0;
  return batch.events.body_lengths.map((length) => batch.events.bodies.subarray(place, place += length).toString());
}

async function main() {
  const [anyBroker] = given.addresses;
  const transactions = client('Transactions', anyBroker);
  const events = client('Events', anyBroker);
  const queue = `node-${crypto.randomUUID()}`;
  const group = `readers-of-${queue}`;
  let transaction;
  let known;

  await check('a queue is declared on a session stream', async () => {
    const request = { kind: 'KIND_SET', name: given.set };
    const located = await call(client('Cluster', anyBroker), 'Locate', request);
    const answer = await command(located.candidates[0], { declare_queue: { name: queue, is_durable: true } });
    assert.deepStrictEqual(answer, { code: 0, text: '' });
  });

  await check('a queue is declared, bound and deleted by single calls', async () => {
    const resources = client('Resources', anyBroker);
    const [name, exchange] = [`calls-${queue}`, `calls-${queue}-topic`];
    const declared = await call(resources, 'DeclareQueue', { resource_set: given.set, name, length_max: 10 });
    assert.strictEqual(declared.resource_set, given.set);
    assert.ok(declared.epoch > 0 && declared.commit_index > 0);
    const again = await call(resources, 'DeclareQueue', { name, length_max: 10 });
    assert.strictEqual(again.queue, declared.queue);
    await assert.rejects(call(resources, 'DeclareQueue', { name }), { code: grpc.status.ALREADY_EXISTS });
    await call(resources, 'DeclareExchange', { resource_set: given.set, name: exchange, kind: 'topic' });
    await call(resources, 'Bind', { exchange, queue: name, key: 'a.*' });
    await call(resources, 'Unbind', { exchange, queue: name, key: 'a.*' });
    await call(resources, 'DeleteExchange', { name: exchange });
    assert.strictEqual((await call(resources, 'DeleteQueue', { name })).messages, 0);
    await assert.rejects(call(resources, 'DeleteQueue', { name }), { code: grpc.status.NOT_FOUND });
  });

  await check('a group of readers is opened', async () => {
    const opened = await call(events, 'OpenSubscription', { group, start: 'START_LATEST' });
    assert.strictEqual(opened.is_new, true);
    known = opened.offsets;
  });

  await check('a transaction of two messages is committed', async () => {
    const begun = await call(transactions, 'Begin', { resource_set: given.set });
    const { secret } = begun;
    transaction = begun.transaction_id;
    for (const sequence of [1, 2]) {
      const messages = [{ body: Buffer.from(`message ${sequence}`) }];
      const request = { transaction_id: transaction, sequence, routing_key: queue, messages, secret };
      assert.strictEqual((await call(transactions, 'Publish', request)).enqueues, 1);
    }
    const commit = { transaction_id: transaction, operations: 2, secret };
    const committed = await call(transactions, 'Commit', commit);
    assert.ok(committed.epoch > 0 && committed.commit_index > 0);
    const outcome = await call(transactions, 'GetOutcome', { transaction_id: transaction });
    assert.strictEqual(outcome.state, 'OUTCOME_STATE_COMMITTED');
  });

  await check('its events are read whole and in order', async () => {
    const found = [];
    const deadline = Date.now() + CALL_MS;
    while (found.length === 0 && Date.now() < deadline) {
      const plan = await call(events, 'Plan', { group, known, wait_ms: 2000 });
      for (const range of plan.ranges) {
        for (const batch of await read(range.brokers[0], range.start, range.to)) {
          const bodies = bodiesOf(batch);
          let place = 0;
          for (const one of batch.transactions) {
            const here = bodies.slice(place, place += one.events_here);
            if (one.transaction_id === transaction) found.push({ events: one.events, bodies: here });
          }
        }
      }
      known = plan.ranges.map((range) => range.to);
    }
    assert.deepStrictEqual(found, [{ events: 2, bodies: ['message 1', 'message 2'] }]);
  });

  await check('what was read is acknowledged', async () => {
    await call(events, 'Acknowledge', { group, offsets: known });
    const again = await call(events, 'OpenSubscription', { group, start: 'START_LATEST' });
    assert.strictEqual(again.is_new, false);
    assert.deepStrictEqual(again.offsets, known);
    await call(events, 'CloseSubscription', { group });
  });

  await check('an error has its number in the trailing metadata', async () => {
    const request = { transaction_id: transaction };
    await assert.rejects(call(transactions, 'Rollback', request), (error) => {
      assert.match(error.metadata.get('lockstep-code')[0], /^\d+$/);
      return true;
    });
  });

  clients.forEach((one) => one.close());
}

main();
