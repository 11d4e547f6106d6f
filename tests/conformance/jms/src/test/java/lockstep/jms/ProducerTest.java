package lockstep.jms;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import jakarta.jms.BytesMessage;
import jakarta.jms.CompletionListener;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Sending: named and anonymous producers, headers, asynchronous sends, sizes, and the time that messages live. */
class ProducerTest {
    @RegisterExtension final Clients clients = new Clients();

    private Connection connection;
    private Session session;
    private Queue queue;

    @BeforeEach
    void open() throws JMSException {
        connection = clients.connect();
        session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        queue = session.createQueue(clients.name("queue"));
    }

    @Test
    void anonymousProducerSendsToAnyDestination() throws JMSException {
        Queue other = session.createQueue(clients.name("other"));
        MessageProducer producer = session.createProducer(null);
        producer.send(queue, session.createTextMessage("one"));
        producer.send(other, session.createTextMessage("two"));
        producer.send(queue, session.createTextMessage("three"));
        Clients.assertHolds(List.of("one", "three"), connection, queue);
        Clients.assertHolds(List.of("two"), connection, other);
    }

    @ParameterizedTest
    @ValueSource(ints = {DeliveryMode.PERSISTENT, DeliveryMode.NON_PERSISTENT})
    void deliveryModeArrives(int mode) throws JMSException {
        MessageProducer producer = session.createProducer(queue);
        producer.setDeliveryMode(mode);
        producer.send(session.createTextMessage("one"));
        assertEquals(mode, received().getJMSDeliveryMode());
    }

    @Test
    void higherPrioritiesArriveFirstAndEachInTheOrderOfItsMessages() throws JMSException {
        MessageProducer producer = session.createProducer(queue);
        for (String round : new String[] {"a", "b"}) {
            for (int priority = 0; priority <= 9; priority++) {
                producer.setPriority(priority);
                producer.send(session.createTextMessage(priority + round));
            }
        }
        try (MessageConsumer consumer = session.createConsumer(queue)) {
            for (int priority = 9; priority >= 0; priority--) {
                for (String round : new String[] {"a", "b"}) {
                    Message message = Clients.receive(consumer);
                    assertEquals(priority + round, Clients.text(message));
                    assertEquals(priority, message.getJMSPriority());
                }
            }
        }
    }

    @Test
    void timeToLiveArrivesAsExpiration() throws JMSException {
        MessageProducer producer = session.createProducer(queue);
        producer.setTimeToLive(60_000);
        Message sent = session.createTextMessage("one");
        producer.send(sent);
        assertTrue(sent.getJMSExpiration() > System.currentTimeMillis() + 30_000);
        assertEquals(sent.getJMSExpiration(), received().getJMSExpiration());
    }

    @Test
    void expiredMessagesAreNotDelivered() throws Exception {
        // The client drops what has expired, unless it is told not to: then only the broker's work shows.
        Connection trusting = clients.connect("jms.localMessageExpiry=false");
        MessageProducer producer = session.createProducer(queue);
        producer.send(session.createTextMessage("before"), DeliveryMode.PERSISTENT, 4, 0);
        producer.send(session.createTextMessage("expires"), DeliveryMode.PERSISTENT, 4, 300);
        producer.send(session.createTextMessage("expires"), DeliveryMode.NON_PERSISTENT, 4, 300);
        producer.send(session.createTextMessage("later"), DeliveryMode.PERSISTENT, 4, 60_000);
        Thread.sleep(1_500);
        Clients.assertHolds(List.of("before", "later"), trusting, queue);
    }

    @Test
    void messageIdIsThatOfTheProducer() throws JMSException {
        Message sent = session.createTextMessage("one");
        session.createProducer(queue).send(sent);
        assertTrue(sent.getJMSMessageID().startsWith("ID:"));
        assertEquals(sent.getJMSMessageID(), received().getJMSMessageID());
    }

    @Test
    void disabledMessageIdAndTimestampAreNotSent() throws JMSException {
        MessageProducer producer = session.createProducer(queue);
        producer.setDisableMessageID(true);
        producer.setDisableMessageTimestamp(true);
        producer.send(session.createTextMessage("one"));
        Message message = received();
        assertNull(message.getJMSMessageID());
        assertEquals(0, message.getJMSTimestamp());
    }

    @Test
    void completionListenerHearsOfEveryMessageInOrder() throws Exception {
        List<String> completed = Collections.synchronizedList(new ArrayList<>());
        CountDownLatch left = new CountDownLatch(200);
        CompletionListener listener =
                new CompletionListener() {
                    @Override
                    public void onCompletion(Message message) {
                        try {
                            completed.add(Clients.text(message));
                        } catch (JMSException error) {
                            completed.add(error.toString());
                        }
                        left.countDown();
                    }

                    @Override
                    public void onException(Message message, Exception error) {
                        completed.add(error.toString());
                        left.countDown();
                    }
                };
        MessageProducer producer = session.createProducer(queue);
        for (String text : Clients.numbers(0, 200)) {
            producer.send(session.createTextMessage(text), listener);
        }
        assertTrue(left.await(20, TimeUnit.SECONDS), "not completed: " + left.getCount());
        assertEquals(Clients.numbers(0, 200), completed);
        Clients.assertHolds(Clients.numbers(0, 200), connection, queue);
    }

    @Test
    void presettledMessagesArrive() throws JMSException {
        Connection presettling = clients.connect("jms.presettlePolicy.presettleProducers=true");
        try (Session sending = presettling.createSession(Session.AUTO_ACKNOWLEDGE)) {
            Clients.sendNumbers(sending, queue, 100);
        }
        presettling.close();
        assertEquals(Clients.numbers(0, 100), Clients.texts(session.createConsumer(queue), 100));
    }

    @Test
    void largeMessageArrivesWhole() throws JMSException {
        byte[] body = new byte[5 * 1024 * 1024];
        new Random(5).nextBytes(body);
        BytesMessage sent = session.createBytesMessage();
        sent.writeBytes(body);
        session.createProducer(queue).send(sent);
        assertArrayEquals(body, received().getBody(byte[].class));
    }

    @Test
    void emptyMessageArrives() throws JMSException {
        session.createProducer(queue).send(session.createMessage());
        assertNotNull(received().getJMSMessageID());
    }

    @Test
    void tenThousandMessagesKeepTheirOrder() throws JMSException {
        int count = 10_000;
        Connection fast = clients.connect("jms.forceAsyncSend=true", "jms.prefetchPolicy.all=1000");
        try (Session sending = fast.createSession(Session.AUTO_ACKNOWLEDGE)) {
            Clients.sendNumbers(sending, queue, count);
        }
        Session receiving = fast.createSession(Session.DUPS_OK_ACKNOWLEDGE);
        assertEquals(Clients.numbers(0, count), Clients.texts(receiving.createConsumer(queue), count));
    }

    @Test
    void closedProducersLeaveTheirMessages() throws JMSException {
        for (String text : Clients.numbers(0, 30)) {
            Clients.send(session, queue, text);
        }
        Clients.assertHolds(Clients.numbers(0, 30), connection, queue);
    }

    @Test
    void nameWithOddCharactersIsAName() throws JMSException {
        Queue odd = session.createQueue(clients.name("a b.c:d\u00e4\u4e2d"));
        Clients.send(session, odd, "one");
        MessageConsumer consumer = session.createConsumer(odd);
        Message message = Clients.receive(consumer);
        assertEquals(odd, message.getJMSDestination());
        assertNotEquals(queue, message.getJMSDestination());
    }

    private Message received() throws JMSException {
        try (MessageConsumer consumer = session.createConsumer(queue)) {
            return Clients.receive(consumer);
        }
    }
}
