package lockstep.jms;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import java.util.List;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Topics: every subscriber has a copy of its own; a durable subscription keeps messages while nobody is there. */
class TopicTest {
    @RegisterExtension final Clients clients = new Clients();

    private Connection connection;
    private Session session;
    private Topic topic;

    @BeforeEach
    void open() throws JMSException {
        connection = clients.connect("jms.clientID=" + clients.name("client"));
        session = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        topic = session.createTopic(clients.name("topic"));
    }

    @Test
    void everySubscriberGetsEveryMessage() throws JMSException {
        Session other = clients.connect().createSession(Session.AUTO_ACKNOWLEDGE);
        List<MessageConsumer> subscribers =
                List.of(
                        session.createConsumer(topic),
                        session.createConsumer(topic),
                        other.createConsumer(topic));
        Clients.sendNumbers(session, topic, 20);
        for (MessageConsumer subscriber : subscribers) {
            Clients.assertOnly(Clients.numbers(0, 20), subscriber);
        }
    }

    @Test
    void messageIsFromTheTopic() throws JMSException {
        MessageConsumer subscriber = session.createConsumer(topic);
        Clients.send(session, topic, "one");
        assertEquals(topic, Clients.receive(subscriber).getJMSDestination());
    }

    @Test
    void subscriberGetsNothingFromBeforeItsTime() throws JMSException {
        Clients.send(session, topic, "nobody is there");
        MessageConsumer subscriber = session.createConsumer(topic);
        Clients.send(session, topic, "one");
        assertEquals(List.of("one"), Clients.texts(subscriber, 1));
        subscriber.close();
        Clients.send(session, topic, "nobody is there again");
        assertEquals(List.of(), Clients.rest(session.createConsumer(topic)));
    }

    @Test
    void messagesGoToTheirDestinationOnly() throws JMSException {
        Queue queue = session.createQueue(topic.getTopicName() + ".queue");
        Topic other = session.createTopic(topic.getTopicName() + ".other");
        MessageConsumer subscriber = session.createConsumer(topic);
        Clients.send(session, queue, "to the queue");
        Clients.send(session, other, "to another topic");
        Clients.send(session, topic, "to the topic");
        assertEquals(List.of("to the topic"), Clients.texts(subscriber, 1));
        Clients.assertHolds(List.of("to the queue"), connection, queue);
    }

    @Test
    void noLocalSubscriberDoesNotHearItsOwnConnection() throws JMSException {
        MessageConsumer subscriber = session.createConsumer(topic, null, true);
        Session other = clients.connect().createSession(Session.AUTO_ACKNOWLEDGE);
        Clients.send(session, topic, "own");
        Clients.send(other, topic, "another's");
        Clients.assertOnly(List.of("another's"), subscriber);
    }

    @Test
    void anonymousProducerReachesATopic() throws JMSException {
        MessageConsumer subscriber = session.createConsumer(topic);
        session.createProducer(null).send(topic, session.createTextMessage("one"));
        assertEquals(List.of("one"), Clients.texts(subscriber, 1));
    }

    @Test
    void uncommittedMessagesReachNoSubscriber() throws JMSException {
        MessageConsumer subscriber = session.createConsumer(topic);
        Session working = connection.createSession(Session.SESSION_TRANSACTED);
        Clients.send(working, topic, "rolled back");
        working.rollback();
        Clients.send(working, topic, "one", "two");
        assertEquals(List.of(), Clients.rest(subscriber));
        working.commit();
        assertEquals(List.of("one", "two"), Clients.texts(subscriber, 2));
    }

    @Test
    void durableSubscriptionKeepsMessagesWhileItsSubscriberIsAway() throws JMSException {
        String id = connection.getClientID();
        MessageConsumer subscriber = session.createDurableConsumer(topic, "subscription");
        Clients.send(session, topic, "one");
        assertEquals(List.of("one"), Clients.texts(subscriber, 1));
        subscriber.close();
        Clients.send(session, topic, "two");
        connection.close();
        Session publishing = clients.connect().createSession(Session.AUTO_ACKNOWLEDGE);
        Clients.send(publishing, topic, "three");
        Connection again = clients.connect("jms.clientID=" + id);
        Session next = again.createSession(Session.AUTO_ACKNOWLEDGE);
        try (MessageConsumer consumer = next.createDurableConsumer(topic, "subscription")) {
            Clients.assertOnly(List.of("two", "three"), consumer);
        }
        next.unsubscribe("subscription");
    }

    @Test
    void unacknowledgedMessagesStayInTheDurableSubscription() throws JMSException {
        Session holding = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer subscriber = holding.createDurableConsumer(topic, "subscription");
        Clients.sendNumbers(session, topic, 10);
        assertEquals(Clients.numbers(0, 5), Clients.texts(subscriber, 5));
        holding.close();
        MessageConsumer again = session.createDurableConsumer(topic, "subscription");
        assertEquals(Clients.numbers(0, 10), Clients.texts(again, 10));
        again.close();
        session.unsubscribe("subscription");
    }

    @Test
    void unsubscribedSubscriptionForgets() throws JMSException {
        session.createDurableConsumer(topic, "subscription").close();
        Clients.send(session, topic, "one");
        session.unsubscribe("subscription");
        MessageConsumer subscriber = session.createDurableConsumer(topic, "subscription");
        assertEquals(List.of(), Clients.rest(subscriber));
        Clients.send(session, topic, "two");
        assertEquals(List.of("two"), Clients.texts(subscriber, 1));
        subscriber.close();
        session.unsubscribe("subscription");
    }

    @Test
    void unknownSubscriptionCannotBeUnsubscribed() {
        assertThrows(JMSException.class, () -> session.unsubscribe("no such subscription"));
    }

    @Test
    void subscriptionWithASubscriberCannotBeUnsubscribed() throws JMSException {
        MessageConsumer subscriber = session.createDurableConsumer(topic, "subscription");
        assertThrows(JMSException.class, () -> session.unsubscribe("subscription"));
        Clients.send(session, topic, "one");
        assertEquals(List.of("one"), Clients.texts(subscriber, 1));
        subscriber.close();
        session.unsubscribe("subscription");
    }

    @Test
    void anotherSelectorMakesAnotherSubscription() throws JMSException {
        session.createDurableConsumer(topic, "subscription", "colour = 'red'", false).close();
        sendColoured("red", "blue");
        try (MessageConsumer red = session.createDurableConsumer(topic, "subscription", "colour = 'red'", false)) {
            Clients.assertOnly(List.of("red"), red);
        }
        sendColoured("red", "blue");
        MessageConsumer blue = session.createDurableConsumer(topic, "subscription", "colour = 'blue'", false);
        assertEquals(List.of(), Clients.rest(blue), "what the old selector let in is gone");
        sendColoured("red", "blue");
        Clients.assertOnly(List.of("blue"), blue);
        blue.close();
        session.unsubscribe("subscription");
    }

    @Test
    void subscriptionWithoutASelectorIsAnotherOneThanWithOne() throws JMSException {
        session.createDurableConsumer(topic, "subscription").close();
        sendColoured("red", "blue");
        MessageConsumer red = session.createDurableConsumer(topic, "subscription", "colour = 'red'", false);
        assertEquals(List.of(), Clients.rest(red), "what came without a selector is gone");
        red.close();
        sendColoured("red", "blue");
        MessageConsumer all = session.createDurableConsumer(topic, "subscription");
        assertEquals(List.of(), Clients.rest(all), "what the selector let in is gone");
        sendColoured("red", "blue");
        Clients.assertOnly(List.of("red", "blue"), all);
        all.close();
        session.unsubscribe("subscription");
    }

    @Test
    void anotherTopicMakesAnotherSubscription() throws JMSException {
        session.createDurableConsumer(topic, "subscription").close();
        Clients.send(session, topic, "away");
        // Topics are spread over sets by their names: some of these are in another one.
        for (int number = 0; number < 6; number++) {
            Topic before = topic;
            topic = session.createTopic(clients.name("topic"));
            Clients.send(session, topic, "before its time");
            MessageConsumer subscriber = session.createDurableConsumer(topic, "subscription");
            assertEquals(List.of(), Clients.rest(subscriber), "what came from the old topic is gone");
            Clients.send(session, before, "from the old topic");
            Clients.send(session, topic, "from the new topic");
            Clients.assertOnly(List.of("from the new topic"), subscriber);
            subscriber.close();
            Clients.send(session, topic, "kept");
            try (MessageConsumer again = session.createDurableConsumer(topic, "subscription")) {
                Clients.assertOnly(List.of("kept"), again);
            }
            Clients.send(session, topic, "away");
        }
        session.unsubscribe("subscription");
        assertThrows(JMSException.class, () -> session.unsubscribe("subscription"), "there was one, not six");
    }

    @Test
    void subscriptionThatCameBackToItsOldTopicIsNotTheOldOne() throws JMSException {
        Topic other = session.createTopic(clients.name("other"));
        session.createDurableConsumer(topic, "subscription").close();
        Clients.send(session, topic, "for the first subscription");
        session.createDurableConsumer(other, "subscription").close();
        Clients.send(session, topic, "for nobody");
        Clients.send(session, other, "for the second subscription");
        MessageConsumer subscriber = session.createDurableConsumer(topic, "subscription");
        assertEquals(List.of(), Clients.rest(subscriber));
        Clients.send(session, topic, "one");
        Clients.send(session, other, "from another topic");
        Clients.assertOnly(List.of("one"), subscriber);
        subscriber.close();
        session.unsubscribe("subscription");
    }

    @Test
    void subscriptionChangesByAnotherConnectionOverAnotherProxy() throws JMSException {
        String id = connection.getClientID();
        Topic other = session.createTopic(clients.name("other"));
        session.createDurableConsumer(topic, "subscription", "colour = 'red'", false).close();
        sendColoured("red", "blue");
        connection.close();
        JmsConnectionFactory factory = Clients.failoverFactory(List.of(Clients.PROXIES.get(1)), "jms.clientID=" + id);
        Session next = clients.connect(factory).createSession(Session.AUTO_ACKNOWLEDGE);
        MessageConsumer subscriber = next.createDurableConsumer(other, "subscription", "colour = 'blue'", false);
        Session publishing = clients.connect().createSession(Session.AUTO_ACKNOWLEDGE);
        sendColoured(publishing, topic, "red", "blue");
        sendColoured(publishing, other, "red", "blue");
        Clients.assertOnly(List.of("blue"), subscriber);
        subscriber.close();
        next.unsubscribe("subscription");
    }

    @Test
    void subscriptionWithASubscriberCannotBeChanged() throws JMSException {
        MessageConsumer subscriber = session.createDurableConsumer(topic, "subscription");
        Topic other = session.createTopic(clients.name("other"));
        Session second = connection.createSession(Session.AUTO_ACKNOWLEDGE);
        assertThrows(
                JMSException.class,
                () -> second.createDurableConsumer(topic, "subscription", "colour = 'red'", false));
        assertThrows(JMSException.class, () -> second.createDurableConsumer(other, "subscription"));
        sendColoured("red", "blue");
        Clients.assertOnly(List.of("red", "blue"), subscriber);
        subscriber.close();
        sendColoured("red", "blue");
        try (MessageConsumer again = session.createDurableConsumer(topic, "subscription")) {
            Clients.assertOnly(List.of("red", "blue"), again);
        }
        session.unsubscribe("subscription");
    }

    @Test
    void subscriptionThatIsRefusedAnotherSelectorKeepsWhatItHas() throws JMSException {
        session.createDurableConsumer(topic, "subscription", "colour = 'red'", false).close();
        sendColoured("red", "blue");
        String tooLong = "colour = '" + "x".repeat(5000) + "'";
        assertThrows(
                JMSException.class, () -> session.createDurableConsumer(topic, "subscription", tooLong, false));
        sendColoured("red", "blue");
        try (MessageConsumer red = session.createDurableConsumer(topic, "subscription", "colour = 'red'", false)) {
            Clients.assertOnly(List.of("red", "red"), red);
        }
        session.unsubscribe("subscription");
    }

    @Test
    void changedSubscriptionForgetsWhatWasRolledBack() throws JMSException {
        Session working = connection.createSession(Session.SESSION_TRANSACTED);
        MessageConsumer subscriber = working.createDurableConsumer(topic, "subscription");
        Clients.sendNumbers(session, topic, 3);
        assertEquals(Clients.numbers(0, 2), Clients.texts(subscriber, 2));
        working.rollback();
        subscriber.close();
        MessageConsumer red = session.createDurableConsumer(topic, "subscription", "colour = 'red'", false);
        assertEquals(List.of(), Clients.rest(red));
        sendColoured("red", "blue");
        Clients.assertOnly(List.of("red"), red);
        red.close();
        session.unsubscribe("subscription");
    }

    @Test
    void subscriptionsOfTwoClientsWithOneNameAreTwo() throws JMSException {
        Connection other = clients.connect("jms.clientID=" + clients.name("other"));
        Session ofOther = other.createSession(Session.AUTO_ACKNOWLEDGE);
        MessageConsumer one = session.createDurableConsumer(topic, "subscription");
        MessageConsumer two = ofOther.createDurableConsumer(topic, "subscription");
        Clients.send(session, topic, "one");
        assertEquals(List.of("one"), Clients.texts(one, 1));
        assertEquals(List.of("one"), Clients.texts(two, 1));
        one.close();
        two.close();
        session.unsubscribe("subscription");
        ofOther.unsubscribe("subscription");
    }

    @Test
    void durableSubscriptionIsConsumedInATransaction() throws JMSException {
        Session working = connection.createSession(Session.SESSION_TRANSACTED);
        MessageConsumer subscriber = working.createDurableConsumer(topic, "subscription");
        Clients.sendNumbers(session, topic, 3);
        assertEquals(Clients.numbers(0, 2), Clients.texts(subscriber, 2));
        working.rollback();
        Message again = Clients.receive(subscriber);
        assertEquals("0", Clients.text(again));
        working.commit();
        working.close();
        MessageConsumer next = session.createDurableConsumer(topic, "subscription");
        assertEquals("1", Clients.text(Clients.receive(next)));
        assertEquals("2", Clients.text(Clients.receive(next)));
        next.close();
        session.unsubscribe("subscription");
    }

    private void sendColoured(String... colours) throws JMSException {
        sendColoured(session, topic, colours);
    }

    private static void sendColoured(Session session, Topic topic, String... colours) throws JMSException {
        try (MessageProducer producer = session.createProducer(topic)) {
            for (String colour : colours) {
                Message message = session.createTextMessage(colour);
                message.setStringProperty("colour", colour);
                producer.send(message);
            }
        }
    }
}
