package lockstep.jms;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.Topic;
import jakarta.jms.TransactionRolledBackException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.apache.qpid.jms.JmsTransactionInDoubtException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Isolated;

/** Failover URLs across killed and stalled proxies and killed primaries: nothing is lost, and moves happen once. */
@Order(Integer.MAX_VALUE)
@Isolated
@Timeout(180)
class FailoverTest {
    private static final String[] PATIENT = {
        "jms.requestTimeout=20000",
        "jms.sendTimeout=20000",
        "failover.initialReconnectDelay=0",
        "failover.reconnectDelay=20",
        "failover.maxReconnectDelay=200",
        "failover.maxReconnectAttempts=300"
    };

    @RegisterExtension final Clients clients = new Clients();

    private final List<Integer> dead = new ArrayList<>();
    private Connection connection;
    private Session session;
    private Queue queue;
    private Queue target;

    @BeforeEach
    void open() throws JMSException {
        assumeTrue(Cluster.isControlled(), "nobody kills processes here");
        connection = clients.connect(factory(Clients.PROXIES));
        session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        queue = session.createQueue(clients.name("queue"));
        target = session.createQueue(clients.name("target"));
    }

    @AfterEach
    void revive() {
        List.copyOf(dead).forEach(this::startProxy);
    }

    @Test
    void clientMovesToAnotherProxyWhenItsOwnIsKilled() throws JMSException {
        MessageConsumer consumer = session.createConsumer(queue);
        Clients.send(session, queue, "before");
        assertEquals(List.of("before"), Clients.texts(consumer, 1));
        killProxy(0);
        Clients.send(session, queue, "after");
        assertArrives("after", consumer);
        startProxy(0);
        killProxy(1);
        Clients.send(session, queue, "again");
        assertArrives("again", consumer);
    }

    @Test
    void clientLearnsTheOtherProxiesFromItsOwn() throws JMSException {
        Connection knowingOne = clients.connect(factory(Clients.PROXIES.subList(0, 1)));
        Session working = knowingOne.createSession(Session.AUTO_ACKNOWLEDGE);
        killProxy(0);
        Clients.send(working, queue, "one");
        assertEquals(List.of("one"), Clients.texts(working.createConsumer(queue), 1));
    }

    @Test
    void temporaryQueueIsMadeAgainAtTheNextProxy() throws JMSException {
        TemporaryQueue replies = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(replies);
        Clients.send(session, replies, "before");
        assertEquals(List.of("before"), Clients.texts(consumer, 1));
        killProxy(0);
        Clients.send(session, replies, "after");
        assertArrives("after", consumer);
    }

    @Test
    void durableSubscriptionGoesOnAtTheNextProxy() throws JMSException {
        String id = "jms.clientID=" + clients.name("client");
        Connection subscribing = clients.connect(factory(Clients.PROXIES, id));
        Session receiving = subscribing.createSession(Session.AUTO_ACKNOWLEDGE);
        Topic topic = receiving.createTopic(clients.name("topic"));
        MessageConsumer subscriber = receiving.createDurableConsumer(topic, "subscription");
        Clients.send(session, topic, "before");
        assertEquals(List.of("before"), Clients.texts(subscriber, 1));
        killProxy(0);
        Clients.send(session, topic, "after");
        assertArrives("after", subscriber);
        subscriber.close();
        receiving.unsubscribe("subscription");
    }

    @Test
    void unacknowledgedMessagesOfAKilledProxyAreDeliveredAgain() throws JMSException {
        Clients.sendNumbers(session, queue, 20);
        Session holding = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer consumer = holding.createConsumer(queue);
        assertEquals(Clients.numbers(0, 5), Clients.texts(consumer, 5));
        killProxy(0);
        // Before the client notices that its connection is gone it may give out what it has prefetched, which then comes again.
        TreeSet<String> again = new TreeSet<>();
        boolean isMoreThere = true;
        while (again.size() < 20 && isMoreThere) {
            List<String> next = Clients.texts(consumer, 1);
            isMoreThere = !next.isEmpty();
            again.addAll(next);
        }
        assertEquals(Clients.numbers(0, 20), sorted(List.copyOf(again)));
    }

    @Test
    void transactionCutByAKilledProxyIsRolledBack() throws JMSException {
        Clients.sendNumbers(session, queue, 3);
        Session working = connection.createSession(Session.SESSION_TRANSACTED);
        MessageConsumer consumer = working.createConsumer(queue);
        assertEquals(List.of("0"), Clients.texts(consumer, 1));
        Clients.send(working, target, "0");
        killProxy(0);
        assertThrows(TransactionRolledBackException.class, working::commit);
        awaitConnection(connection);
        boolean isCommitted = false;
        while (!isCommitted) {
            assertEquals(Clients.numbers(0, 3), sorted(Clients.texts(consumer, 3)));
            try {
                working.commit();
                isCommitted = true;
            } catch (TransactionRolledBackException error) {
                // Begun before the client had noticed that its connection is gone.
            }
        }
        working.close();
        Clients.assertHolds(List.of(), connection, queue);
        Clients.assertHolds(List.of(), connection, target);
    }

    @Test
    void sendsAcrossKilledProxiesLoseNothing() throws Exception {
        assertSendsLoseNothing(this::killEachProxy);
    }

    @Test
    void sendsAcrossStalledProxiesLoseNothing() throws Exception {
        assertSendsLoseNothing(FailoverTest::stallEachProxy);
    }

    @Test
    void transactedMovesAcrossStalledProxiesHappenOnce() throws Exception {
        assertMovedOnce(FailoverTest::stallEachProxy);
    }

    private void assertSendsLoseNothing(Runnable doHarm) throws Exception {
        int count = 400;
        CompletableFuture<Void> harm = CompletableFuture.runAsync(doHarm);
        List<String> sent = new ArrayList<>();
        MessageProducer producer = session.createProducer(queue);
        for (int number = 0; number < count || !harm.isDone(); number++) {
            sent.add(Integer.toString(number));
            producer.send(session.createTextMessage(Integer.toString(number)));
        }
        harm.get(30, TimeUnit.SECONDS);
        List<String> arrived = contents(sent.size(), queue);
        assertEquals(new TreeSet<>(sent), new TreeSet<>(arrived));
        // The send that was under way when its proxy died or stalled is repeated, whether or not it had arrived.
        assertTrue(arrived.size() <= sent.size() + 2, () -> "duplicates: " + (arrived.size() - sent.size()));
    }

    @Test
    void transactedMovesAcrossKilledProxiesHappenOnce() throws Exception {
        assertMovedOnce(this::killEachProxy);
    }

    @Test
    void transactedMovesAcrossKilledPrimariesHappenOnce() throws Exception {
        assertMovedOnce(Cluster::killPrimaries);
    }

    @Test
    void sendsAcrossKilledPrimariesLoseNothing() throws Exception {
        CompletableFuture<Void> harm = CompletableFuture.runAsync(Cluster::killPrimaries);
        List<String> sent = new ArrayList<>();
        MessageProducer producer = session.createProducer(queue);
        MessageConsumer consumer = session.createConsumer(target);
        for (int number = 0; number < 200 || !harm.isDone(); number++) {
            sent.add(Integer.toString(number));
            producer.send(session.createTextMessage(Integer.toString(number)));
        }
        harm.get(30, TimeUnit.SECONDS);
        List<String> arrived = contents(sent.size(), queue);
        assertEquals(new TreeSet<>(sent), new TreeSet<>(arrived));
        // The proxy repeats it under the number that it has: the connection was never lost.
        assertEquals(sent.size(), arrived.size());
        Clients.send(session, target, "still served");
        assertEquals(List.of("still served"), Clients.texts(consumer, 1));
    }

    /**
     * Moves messages to and fro between two queues while harm is done: at the end each is in one of them, once. What
     * became of a commit in doubt does not matter: a message is gone from where it was if and only if it is where it went.
     */
    private void assertMovedOnce(Runnable doHarm) throws Exception {
        int count = 200;
        try (Session filling = connection.createSession(Session.SESSION_TRANSACTED)) {
            Clients.sendNumbers(filling, queue, count);
            filling.commit();
        }
        Connection moving = clients.connect(factory(Clients.PROXIES));
        Session working = moving.createSession(Session.SESSION_TRANSACTED);
        List<MessageConsumer> sources = List.of(working.createConsumer(queue), working.createConsumer(target));
        List<MessageProducer> targets = List.of(working.createProducer(target), working.createProducer(queue));
        CompletableFuture<Void> harm = CompletableFuture.runAsync(doHarm);
        int way = 0;
        while (!harm.isDone()) {
            try {
                int moved = 0;
                Message message = sources.get(way).receive(200);
                while (message != null && moved < 4) {
                    targets.get(way).send(working.createTextMessage(Clients.text(message)));
                    moved++;
                    message = moved < 4 ? sources.get(way).receive(200) : null;
                }
                working.commit();
                way = moved == 0 ? 1 - way : way;
            } catch (TransactionRolledBackException | JmsTransactionInDoubtException error) {
                // Its messages come again where they were, or they are where they went.
                awaitConnection(moving);
            }
        }
        harm.get();
        moving.close();
        assertEquals(Clients.numbers(0, count), sorted(contents(count, queue, target)));
    }

    /** That a text arrives; before it may come what was consumed and whose acknowledgement died with a proxy. */
    private static void assertArrives(String wanted, MessageConsumer consumer) throws JMSException {
        String text = Clients.text(Clients.receive(consumer));
        while (!text.equals(wanted)) {
            text = Clients.text(Clients.receive(consumer));
        }
    }

    /**
     * Returns when the client has its connection back. Between a commit that failed with the connection and that moment
     * it may still hand out messages that were fetched before, and the next commit does not cover those.
     */
    private static void awaitConnection(Connection connection) throws JMSException {
        connection.createSession(Session.AUTO_ACKNOWLEDGE).close();
    }

    private static List<String> sorted(List<String> numbers) {
        return numbers.stream().sorted(Comparator.comparingInt(Integer::parseInt)).toList();
    }

    private static JmsConnectionFactory factory(List<String> proxies, String... options) {
        String[] all = Arrays.copyOf(PATIENT, PATIENT.length + options.length);
        System.arraycopy(options, 0, all, PATIENT.length, options.length);
        return Clients.failoverFactory(proxies, all);
    }

    /** What is in these queues, taken out: as much as expected and all that comes behind it, or what comes for long. */
    private List<String> contents(int expected, Queue... queues) throws JMSException {
        List<String> texts = new ArrayList<>();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        boolean isOver = false;
        while (!isOver) {
            isOver = texts.size() >= expected || System.nanoTime() > deadline;
            for (Queue each : queues) {
                try (MessageConsumer consumer = session.createConsumer(each)) {
                    for (Message message; (message = consumer.receive(200)) != null; ) {
                        texts.add(Clients.text(message));
                    }
                }
            }
        }
        return texts;
    }

    private void killEachProxy() {
        for (int place = 0; place < 2; place++) {
            killProxy(place);
            startProxy(place);
        }
    }

    private static void stallEachProxy() {
        for (int place = 0; place < 2; place++) {
            Cluster.stallProxy(place);
        }
    }

    private void killProxy(int place) {
        dead.add(place);
        Cluster.killProxy(place);
    }

    private void startProxy(int place) {
        Cluster.startProxy(place);
        dead.remove(Integer.valueOf(place));
    }
}
