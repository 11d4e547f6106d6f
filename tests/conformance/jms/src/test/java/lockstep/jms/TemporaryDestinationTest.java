package lockstep.jms;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TemporaryTopic;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Temporary queues and topics: theirs who made them, and gone with the connection. */
class TemporaryDestinationTest {
    @RegisterExtension final Clients clients = new Clients();

    private Connection connection;
    private Session session;

    @BeforeEach
    void open() throws JMSException {
        connection = clients.connect();
        session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
    }

    @Test
    void requestsAreAnsweredOverATemporaryQueue() throws Exception {
        Queue requests = session.createQueue(clients.name("requests"));
        Session serving = clients.connect().createSession(Session.AUTO_ACKNOWLEDGE);
        serving
                .createConsumer(requests)
                .setMessageListener(
                        request -> {
                            try {
                                Message reply = serving.createTextMessage("re: " + Clients.text(request));
                                reply.setJMSCorrelationID(request.getJMSMessageID());
                                serving.createProducer(request.getJMSReplyTo()).send(reply);
                            } catch (JMSException error) {
                                throw new IllegalStateException(error);
                            }
                        });
        TemporaryQueue replies = session.createTemporaryQueue();
        MessageConsumer consumer = session.createConsumer(replies);
        for (String text : Clients.numbers(0, 20)) {
            Message request = session.createTextMessage(text);
            request.setJMSReplyTo(replies);
            session.createProducer(requests).send(request);
            Message reply = Clients.receive(consumer);
            assertEquals("re: " + text, Clients.text(reply));
            assertEquals(request.getJMSMessageID(), reply.getJMSCorrelationID());
        }
    }

    @Test
    void replyByAnAnonymousProducerArrives() throws JMSException {
        TemporaryQueue replies = session.createTemporaryQueue();
        Session other = clients.connect().createSession(Session.AUTO_ACKNOWLEDGE);
        other.createProducer(null).send(replies, other.createTextMessage("one"));
        assertEquals(List.of("one"), Clients.texts(session.createConsumer(replies), 1));
    }

    @Test
    void temporaryQueuesHaveNamesOfTheirOwn() throws JMSException {
        TemporaryQueue one = session.createTemporaryQueue();
        TemporaryQueue two = session.createTemporaryQueue();
        assertNotEquals(one.getQueueName(), two.getQueueName());
        Clients.send(session, one, "one");
        Clients.assertHolds(List.of(), connection, two);
        Clients.assertHolds(List.of("one"), connection, one);
    }

    @Test
    void temporaryQueueServesTheSessionsOfItsConnection() throws JMSException {
        TemporaryQueue queue = session.createTemporaryQueue();
        session.close();
        Session other = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        Clients.send(other, queue, "one");
        Clients.assertHolds(List.of("one"), connection, queue);
    }

    @Test
    void deletedTemporaryQueueIsGone() throws JMSException {
        TemporaryQueue queue = session.createTemporaryQueue();
        Clients.send(session, queue, "one");
        queue.delete();
        assertThrows(JMSException.class, () -> session.createProducer(queue));
        assertThrows(JMSException.class, () -> session.createConsumer(queue));
    }

    @Test
    void temporaryQueueIsGoneWithItsConnection() throws JMSException {
        TemporaryQueue queue = session.createTemporaryQueue();
        connection.close();
        Session other = clients.connect().createSession(Session.AUTO_ACKNOWLEDGE);
        assertThrows(JMSException.class, () -> Clients.send(other, queue, "one"));
    }

    @Test
    void temporaryQueueOfAnotherConnectionIsNotReadFrom() throws JMSException {
        TemporaryQueue queue = session.createTemporaryQueue();
        Session other = clients.connect().createSession(Session.AUTO_ACKNOWLEDGE);
        assertThrows(JMSException.class, () -> other.createConsumer(queue));
    }

    @Test
    void temporaryTopicReachesItsSubscribersUntilDeleted() throws JMSException {
        TemporaryTopic topic = session.createTemporaryTopic();
        MessageConsumer one = session.createConsumer(topic);
        MessageConsumer two = session.createConsumer(topic);
        Session other = clients.connect().createSession(Session.AUTO_ACKNOWLEDGE);
        Clients.send(other, topic, "one");
        assertEquals(List.of("one"), Clients.texts(one, 1));
        assertEquals(List.of("one"), Clients.texts(two, 1));
        one.close();
        two.close();
        topic.delete();
        assertThrows(JMSException.class, () -> session.createConsumer(topic));
    }

    @Test
    void temporaryQueueIsTransactedLikeAnyOther() throws JMSException {
        TemporaryQueue queue = session.createTemporaryQueue();
        Session working = connection.createSession(Session.SESSION_TRANSACTED);
        Clients.send(working, queue, "one");
        working.rollback();
        Clients.send(working, queue, "two");
        working.commit();
        Clients.assertHolds(List.of("two"), connection, queue);
    }
}
