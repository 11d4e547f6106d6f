// Checks of the AMQP proxy with rhea; tests/conformance/amqp/test_rhea.py runs them and makes a test of each.
//
// One JSON line is printed for each check: {"check": its sentence, "error": "" or what went wrong}. The only argument is
// JSON: the ports, the authority's certificate, a user and a prefix for names.
'use strict';

const fs = require('fs');
const rhea = require('rhea');

const told = JSON.parse(process.argv[2]);
const CHECK_SECONDS = 30;
const checks = [];
const check = (sentence, run) => checks.push({ sentence, run });
let names = 0;
const newName = () => `${told.prefix}${++names}`;

function expect(actual, expected, what) {
  const [one, two] = [JSON.stringify(actual), JSON.stringify(expected)];
  if (one !== two) throw new Error(`${what}: ${one}, expected ${two}`);
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// The first of these events of something.
function once(emitter, ...events) {
  return new Promise((resolve) => {
    for (const event of events) emitter.once(event, (context) => resolve({ event, context }));
  });
}

async function connected(options, use) {
  const container = rhea.create_container();
  const defaults = { host: '127.0.0.1', port: told.port, reconnect: false };
  const connection = container.connect({ ...defaults, ...options });
  const opened = await once(connection, 'connection_open', 'connection_error', 'disconnected');
  expect(opened.event, 'connection_open', 'the connection');
  connection.on('error', () => {});
  try {
    await use(connection);
  } finally {
    connection.close();
    await once(connection, 'connection_close', 'disconnected');
  }
}

async function sender(connection, options) {
  const link = connection.open_sender(options);
  expect((await once(link, 'sender_open', 'sender_error')).event, 'sender_open', 'the sender');
  if (!link.sendable()) await once(link, 'sendable');
  return link;
}

// Sends, and returns the outcome of each in order.
async function sendAll(link, messages) {
  const outcomes = new Map();
  for (const event of ['accepted', 'rejected', 'released', 'modified']) {
    link.on(event, (context) => outcomes.set(context.delivery, event));
  }
  const deliveries = [];
  for (const message of messages) {
    if (!link.sendable()) await once(link, 'sendable');
    deliveries.push(link.send(message));
  }
  while (deliveries.some((delivery) => !outcomes.has(delivery))) await pause(2);
  return deliveries.map((delivery) => outcomes.get(delivery));
}

class Inbox {
  constructor(link) {
    this.link = link;
    this.contexts = [];
    link.on('message', (context) => this.contexts.push(context));
  }

  async take(count) {
    while (this.contexts.length < count) await pause(2);
    return this.contexts.splice(0, count);
  }

  async takeNothing() {
    await pause(100);
    expect(this.contexts.length, 0, 'messages that should not come');
  }
}

async function receiver(connection, options) {
  const source = typeof options.source === 'string' ? { address: options.source } : options.source;
  const link = connection.open_receiver({ credit_window: 0, autoaccept: false, ...options, source });
  const inbox = new Inbox(link);
  expect((await once(link, 'receiver_open', 'receiver_error')).event, 'receiver_open', 'the receiver');
  return inbox;
}

const bodies = (contexts) => contexts.map((context) => context.message.body);
const numbers = (first, end) => Array.from({ length: end - first }, (_, place) => first + place);
const numbered = (first, end) => numbers(first, end).map((number) => ({ body: number }));

check('open names the proxy and the anonymous relay', () =>
  connected({}, async (connection) => {
    expect(connection.container_id, 'Lockstep', 'container');
    expect(connection.remote.open.offered_capabilities, ['ANONYMOUS-RELAY'], 'capabilities');
  }));

check('messages are accepted and come in order', () =>
  connected({}, async (connection) => {
    const queue = newName();
    const link = await sender(connection, queue);
    const outcomes = await sendAll(link, numbered(0, 500));
    expect(outcomes.every((outcome) => outcome === 'accepted'), true, 'outcomes');
    const inbox = await receiver(connection, { source: queue });
    inbox.link.add_credit(500);
    expect(bodies(await inbox.take(500)), numbers(0, 500), 'bodies');
  }));

check('no more messages come than credit was given', () =>
  connected({}, async (connection) => {
    const queue = newName();
    await sendAll(await sender(connection, queue), numbered(0, 10));
    const inbox = await receiver(connection, { source: queue });
    await inbox.takeNothing();
    inbox.link.add_credit(3);
    expect(bodies(await inbox.take(3)), [0, 1, 2], 'bodies');
    await inbox.takeNothing();
    inbox.link.add_credit(2);
    expect(bodies(await inbox.take(2)), [3, 4], 'bodies');
    await inbox.takeNothing();
  }));

check('a credit window of one keeps messages coming', () =>
  connected({}, async (connection) => {
    const queue = newName();
    await sendAll(await sender(connection, queue), numbered(0, 50));
    const inbox = await receiver(connection, { source: queue, credit_window: 1, autoaccept: true });
    expect(bodies(await inbox.take(50)), numbers(0, 50), 'bodies');
  }));

check('drain of an empty queue is answered at once', () =>
  connected({}, async (connection) => {
    const inbox = await receiver(connection, { source: newName() });
    inbox.link.add_credit(10);
    inbox.link.drain_credit();
    await once(inbox.link, 'receiver_drained');
    expect(inbox.link.credit, 0, 'credit');
  }));

check('drain brings what is there, and then the credit is gone', () =>
  connected({}, async (connection) => {
    const queue = newName();
    const link = await sender(connection, queue);
    await sendAll(link, numbered(0, 3));
    const inbox = await receiver(connection, { source: queue });
    inbox.link.add_credit(10);
    inbox.link.drain_credit();
    await once(inbox.link, 'receiver_drained');
    expect(bodies(await inbox.take(3)), [0, 1, 2], 'bodies');
    inbox.link.drain = false;
    await sendAll(link, [{ body: 'later' }]);
    await inbox.takeNothing();
    inbox.link.add_credit(1);
    expect(bodies(await inbox.take(1)), ['later'], 'bodies');
  }));

check('every outcome does what it says', () =>
  connected({}, async (connection) => {
    const queue = newName();
    const link = await sender(connection, queue);
    const inbox = await receiver(connection, { source: queue });
    const next = async () => {
      inbox.link.add_credit(1);
      return (await inbox.take(1))[0];
    };
    await sendAll(link, [{ body: 'one' }]);
    (await next()).delivery.release();
    let context = await next();
    expect([context.message.body, context.message.delivery_count || 0], ['one', 0], 'after released');
    context.delivery.modified({ delivery_failed: true });
    context = await next();
    expect([context.message.body, context.message.delivery_count], ['one', 1], 'after modified');
    context.delivery.accept();
    await sendAll(link, [{ body: 'two' }]);
    context = await next();
    expect(context.message.body, 'two', 'after accepted');
    context.delivery.reject({ condition: 'app:bad', description: 'no' });
    inbox.link.add_credit(1);
    await inbox.takeNothing();
  }));

check('what a closed link had comes back in order', () =>
  connected({}, async (connection) => {
    const queue = newName();
    await sendAll(await sender(connection, queue), numbered(0, 10));
    const inbox = await receiver(connection, { source: queue });
    inbox.link.add_credit(5);
    await inbox.take(5);
    inbox.link.close();
    await once(inbox.link, 'receiver_close');
    const other = await receiver(connection, { source: queue });
    other.link.add_credit(10);
    expect(bodies(await other.take(10)), numbers(0, 10), 'bodies');
  }));

check('presettled messages are sent and received', () =>
  connected({}, async (connection) => {
    const queue = newName();
    const link = await sender(connection, { target: queue, snd_settle_mode: 1 });
    for (const message of numbered(0, 20)) link.send(message);
    const inbox = await receiver(connection, { source: queue, snd_settle_mode: 1 });
    inbox.link.add_credit(20);
    const contexts = await inbox.take(20);
    expect(bodies(contexts), numbers(0, 20), 'bodies');
    expect(contexts.every((context) => context.delivery.remote_settled), true, 'settled');
  }));

check('a receiver that settles second hears the settlement', () =>
  connected({}, async (connection) => {
    const queue = newName();
    await sendAll(await sender(connection, queue), [{ body: 'one' }]);
    const inbox = await receiver(connection, { source: queue, rcv_settle_mode: 1 });
    inbox.link.add_credit(1);
    const [context] = await inbox.take(1);
    const settled = once(inbox.link, 'settled');
    context.delivery.update(false, rhea.message.accepted().described());
    await settled;
  }));

check('messages of ten megabytes arrive whole', () =>
  connected({}, async (connection) => {
    const queue = newName();
    const body = Buffer.alloc(10 * 1024 * 1024, 'lockstep');
    const link = await sender(connection, queue);
    expect(await sendAll(link, [{ body: rhea.message.data_section(body) }]), ['accepted'], 'outcome');
    const inbox = await receiver(connection, { source: queue });
    inbox.link.add_credit(1);
    const [context] = await inbox.take(1);
    expect(body.equals(context.message.body.content), true, 'the same bytes');
  }));

check('bodies and properties arrive as they were sent', () =>
  connected({}, async (connection) => {
    const queue = newName();
    const message = {
      body: { list: [1, 'two', null, true], text: 'é' },
      subject: 'a subject',
      message_id: 'id',
      correlation_id: 'correlation',
      priority: 7,
      application_properties: { colour: 'red', size: 3 },
    };
    await sendAll(await sender(connection, queue), [message]);
    const inbox = await receiver(connection, { source: queue });
    inbox.link.add_credit(1);
    const [context] = await inbox.take(1);
    for (const name of Object.keys(message)) expect(context.message[name], message[name], name);
  }));

check('a browser takes nothing', () =>
  connected({}, async (connection) => {
    const queue = newName();
    await sendAll(await sender(connection, queue), numbered(0, 5));
    for (const turn of [1, 2]) {
      const source = { address: queue, distribution_mode: 'copy' };
      const inbox = await receiver(connection, { source });
      inbox.link.add_credit(5);
      expect(bodies(await inbox.take(5)), numbers(0, 5), `turn ${turn}`);
      inbox.link.close();
    }
  }));

check('a selector chooses', () =>
  connected({}, async (connection) => {
    const queue = newName();
    const coloured = ['red', 'blue', 'red'].map((colour, place) => ({
      body: place,
      application_properties: { colour },
    }));
    await sendAll(await sender(connection, queue), coloured);
    const source = { address: queue, filter: rhea.filter.selector("colour = 'red'") };
    const inbox = await receiver(connection, { source });
    inbox.link.add_credit(5);
    expect(bodies(await inbox.take(2)), [0, 2], 'bodies');
    await inbox.takeNothing();
  }));

check('requests are answered over a dynamic source and the anonymous relay', () =>
  connected({}, async (connection) => {
    const queue = newName();
    const answers = await receiver(connection, { source: { dynamic: true }, credit_window: 10 });
    const requests = await receiver(connection, { source: queue, credit_window: 10 });
    const relay = await sender(connection, { target: {} });
    const reply_to = answers.link.source.address;
    await sendAll(relay, [{ to: queue, reply_to, correlation_id: '7', body: 'question' }]);
    const [asked] = await requests.take(1);
    const { reply_to: to, correlation_id } = asked.message;
    await sendAll(relay, [{ to, correlation_id, body: 'answer' }]);
    const [answered] = await answers.take(1);
    expect([answered.message.body, answered.message.correlation_id], ['answer', '7'], 'answer');
  }));

check('links to what is nowhere are refused with a reason', () =>
  connected({ port: told.strict_port }, async (connection) => {
    const outgoing = connection.open_sender(newName());
    await once(outgoing, 'sender_error');
    expect(outgoing.error.condition, 'amqp:not-found', 'the sender');
    const incoming = connection.open_receiver(newName());
    await once(incoming, 'receiver_error');
    expect(incoming.error.condition, 'amqp:not-found', 'the receiver');
  }));

check('the anonymous relay rejects what names no node', () =>
  connected({ port: told.strict_port }, async (connection) => {
    const relay = await sender(connection, { target: {} });
    expect(await sendAll(relay, [{ to: newName(), body: 'lost' }]), ['rejected'], 'outcome');
  }));

check('many sessions and links are served', () =>
  connected({}, async (connection) => {
    const queue = newName();
    const links = [];
    for (let number = 0; number < 20; ++number) {
      const session = connection.create_session();
      session.open();
      links.push(session.open_sender(queue));
    }
    await Promise.all(links.map((link) => once(link, 'sendable')));
    links.forEach((link, number) => link.send({ body: number }));
    const inbox = await receiver(connection, { source: queue, credit_window: 20 });
    expect(bodies(await inbox.take(20)).sort((one, two) => one - two), numbers(0, 20), 'bodies');
  }));

check('a user logs in with a password over TLS', () =>
  connected(
    {
      transport: 'tls',
      host: 'localhost',
      port: told.tls_port,
      ca: [fs.readFileSync(told.authority)],
      username: told.user,
      password: told.password,
    },
    async (connection) => {
      const queue = newName();
      await sendAll(await sender(connection, queue), [{ body: 'hello' }]);
      const inbox = await receiver(connection, { source: queue, credit_window: 1 });
      expect(bodies(await inbox.take(1)), ['hello'], 'bodies');
    }
  ));

async function main() {
  for (const { sentence, run } of checks) {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`not within ${CHECK_SECONDS} s`)), 1000 * CHECK_SECONDS);
    });
    let error = '';
    try {
      await Promise.race([run(), late]);
    } catch (caught) {
      error = String(caught);
    }
    clearTimeout(timer);
    console.log(JSON.stringify({ check: sentence, error }));
  }
  // What is left of a check that failed must not keep the process.
  process.exit(0);
}

process.on('uncaughtException', (error) => console.error(error));
main();
