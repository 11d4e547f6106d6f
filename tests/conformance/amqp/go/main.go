// Checks of the AMQP proxy with go-amqp; tests/conformance/amqp/test_go_amqp.py runs them and makes a test of each.
//
// One JSON line is printed for each check: {"check": its sentence, "error": "" or what went wrong}. The only argument is JSON:
// the ports, the authority's certificate, a user and a prefix for names.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/Azure/go-amqp"
)

const checkTime = 30 * time.Second

type told struct {
	Port       int    `json:"port"`
	StrictPort int    `json:"strict_port"`
	TLSPort    int    `json:"tls_port"`
	Authority  string `json:"authority"`
	User       string `json:"user"`
	Password   string `json:"password"`
	Prefix     string `json:"prefix"`
}

// client is one connection with one session; what goes wrong panics with an error, which ends the check.
type client struct {
	ctx     context.Context
	told    told
	conn    *amqp.Conn
	session *amqp.Session
}

var names int

func newName(t told) string {
	names++
	return fmt.Sprintf("%s%d", t.Prefix, names)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func got[T any](value T, err error) T {
	must(err)
	return value
}

func expect(actual, expected any, what string) {
	if fmt.Sprint(actual) != fmt.Sprint(expected) {
		panic(fmt.Errorf("%s: %v, expected %v", what, actual, expected))
	}
}

func dial(ctx context.Context, t told, address string, options *amqp.ConnOptions) *client {
	conn := got(amqp.Dial(ctx, address, options))
	return &client{ctx, t, conn, got(conn.NewSession(ctx, nil))}
}

func (c *client) sender(target string, options *amqp.SenderOptions) *amqp.Sender {
	return got(c.session.NewSender(c.ctx, target, options))
}

func (c *client) receiver(source string, options *amqp.ReceiverOptions) *amqp.Receiver {
	return got(c.session.NewReceiver(c.ctx, source, options))
}

func (c *client) send(sender *amqp.Sender, first, end int) {
	for number := first; number < end; number++ {
		must(sender.Send(c.ctx, amqp.NewMessage(fmt.Appendf(nil, "%d", number)), nil))
	}
}

func (c *client) take(receiver *amqp.Receiver) *amqp.Message {
	return got(receiver.Receive(c.ctx, nil))
}

func (c *client) takeNumbers(receiver *amqp.Receiver, first, end int) {
	for number := first; number < end; number++ {
		message := c.take(receiver)
		expect(string(message.GetData()), number, "body")
		must(receiver.AcceptMessage(c.ctx, message))
	}
}

func (c *client) takeNothing(receiver *amqp.Receiver) {
	ctx, cancel := context.WithTimeout(c.ctx, 100*time.Millisecond)
	defer cancel()
	message, err := receiver.Receive(ctx, nil)
	if err == nil {
		panic(fmt.Errorf("%q came and should not", message.GetData()))
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		panic(err)
	}
}

func manual() *amqp.ReceiverOptions { return &amqp.ReceiverOptions{Credit: -1} }

func condition(err error) string {
	var link *amqp.LinkError
	if errors.As(err, &link) && link.RemoteErr != nil {
		return string(link.RemoteErr.Condition)
	}
	var plain *amqp.Error
	if errors.As(err, &plain) {
		return string(plain.Condition)
	}
	return fmt.Sprint(err)
}

type checked struct {
	sentence string
	run      func(c *client)
}

func check(sentence string, run func(c *client)) checked { return checked{sentence, run} }

var checks = []checked{
	check("messages are accepted and come in order", func(c *client) {
		queue := newName(c.told)
		c.send(c.sender(queue, nil), 0, 200)
		c.takeNumbers(c.receiver(queue, &amqp.ReceiverOptions{Credit: 50}), 0, 200)
	}),

	check("senders that run at the same time share one session", func(c *client) {
		queue := newName(c.told)
		var group sync.WaitGroup
		failures := make(chan error, 8)
		for range 8 {
			sender := c.sender(queue, nil)
			group.Add(1)
			go func() {
				defer group.Done()
				for range 50 {
					if err := sender.Send(c.ctx, amqp.NewMessage([]byte("x")), nil); err != nil {
						failures <- err
						return
					}
				}
			}()
		}
		group.Wait()
		close(failures)
		must(<-failures)
		receiver := c.receiver(queue, &amqp.ReceiverOptions{Credit: 100})
		for range 400 {
			must(receiver.AcceptMessage(c.ctx, c.take(receiver)))
		}
	}),

	check("every settlement mode of a sender delivers", func(c *client) {
		queue := newName(c.told)
		receiver := c.receiver(queue, nil)
		for _, mode := range []amqp.SenderSettleMode{
			amqp.SenderSettleModeUnsettled, amqp.SenderSettleModeSettled, amqp.SenderSettleModeMixed,
		} {
			sender := c.sender(queue, &amqp.SenderOptions{SettlementMode: &mode})
			c.send(sender, 0, 5)
			must(sender.Send(c.ctx, amqp.NewMessage([]byte("5")), &amqp.SendOptions{Settled: mode == amqp.SenderSettleModeMixed}))
			c.takeNumbers(receiver, 0, 6)
		}
	}),

	check("a receiver settles first, or second when the proxy has", func(c *client) {
		queue := newName(c.told)
		sender := c.sender(queue, nil)
		for _, mode := range []amqp.ReceiverSettleMode{amqp.ReceiverSettleModeFirst, amqp.ReceiverSettleModeSecond} {
			c.send(sender, 0, 10)
			receiver := c.receiver(queue, &amqp.ReceiverOptions{SettlementMode: &mode})
			// Of a receiver that settles second, AcceptMessage returns when the proxy has settled.
			c.takeNumbers(receiver, 0, 10)
			must(receiver.Close(c.ctx))
		}
		c.takeNothing(c.receiver(queue, nil))
	}),

	check("presettled messages are received", func(c *client) {
		queue := newName(c.told)
		c.send(c.sender(queue, nil), 0, 5)
		mode := amqp.SenderSettleModeSettled
		receiver := c.receiver(queue, &amqp.ReceiverOptions{RequestedSenderSettleMode: &mode})
		for number := range 5 {
			expect(string(c.take(receiver).GetData()), number, "body")
		}
		must(receiver.Close(c.ctx))
		c.takeNothing(c.receiver(queue, nil))
	}),

	check("no more messages come than credit was issued", func(c *client) {
		queue := newName(c.told)
		c.send(c.sender(queue, nil), 0, 10)
		receiver := c.receiver(queue, manual())
		c.takeNothing(receiver)
		must(receiver.IssueCredit(3))
		c.takeNumbers(receiver, 0, 3)
		c.takeNothing(receiver)
		must(receiver.IssueCredit(7))
		c.takeNumbers(receiver, 3, 10)
	}),

	check("a drain is answered with credit and without", func(c *client) {
		queue := newName(c.told)
		c.send(c.sender(queue, nil), 0, 3)
		receiver := c.receiver(queue, manual())
		must(receiver.DrainCredit(c.ctx, nil))
		must(receiver.IssueCredit(3))
		c.takeNumbers(receiver, 0, 3)
		must(receiver.DrainCredit(c.ctx, nil))
		must(receiver.DrainCredit(c.ctx, nil))
		must(receiver.IssueCredit(5))
		must(receiver.DrainCredit(c.ctx, nil))
		c.send(c.sender(queue, nil), 3, 5)
		must(receiver.IssueCredit(2))
		c.takeNumbers(receiver, 3, 5)
	}),

	check("every outcome does what it says", func(c *client) {
		queue := newName(c.told)
		sender := c.sender(queue, nil)
		receiver := c.receiver(queue, &amqp.ReceiverOptions{Credit: 1})
		c.send(sender, 0, 1)
		must(receiver.ReleaseMessage(c.ctx, c.take(receiver)))
		message := c.take(receiver)
		expect(message.Header == nil || message.Header.DeliveryCount == 0, true, "no failed delivery after released")
		must(receiver.ModifyMessage(c.ctx, message, &amqp.ModifyMessageOptions{DeliveryFailed: true}))
		message = c.take(receiver)
		expect(message.Header.DeliveryCount, 1, "delivery count after modified")
		must(receiver.AcceptMessage(c.ctx, message))
		c.send(sender, 1, 2)
		message = c.take(receiver)
		expect(string(message.GetData()), "1", "body after accepted")
		must(receiver.RejectMessage(c.ctx, message, nil))
		c.takeNothing(receiver)
	}),

	check("what a closed link had comes back in order", func(c *client) {
		queue := newName(c.told)
		c.send(c.sender(queue, nil), 0, 10)
		receiver := c.receiver(queue, &amqp.ReceiverOptions{Credit: 5})
		for range 5 {
			c.take(receiver)
		}
		must(receiver.Close(c.ctx))
		c.takeNumbers(c.receiver(queue, nil), 0, 10)
	}),

	check("messages of ten megabytes arrive whole", func(c *client) {
		queue := newName(c.told)
		body := bytes.Repeat([]byte("lockstep"), 10*1024*1024/8)
		must(c.sender(queue, nil).Send(c.ctx, amqp.NewMessage(body), nil))
		receiver := c.receiver(queue, nil)
		message := c.take(receiver)
		expect(bytes.Equal(message.GetData(), body), true, "the same bytes")
		must(receiver.AcceptMessage(c.ctx, message))
	}),

	check("properties arrive as they were sent", func(c *client) {
		queue := newName(c.told)
		subject := "a subject"
		sent := &amqp.Message{
			Header:                &amqp.MessageHeader{Durable: true, Priority: 7},
			Properties:            &amqp.MessageProperties{MessageID: "id", CorrelationID: uint64(7), Subject: &subject},
			ApplicationProperties: map[string]any{"colour": "red", "size": int64(3)},
			Value:                 map[string]any{"key": "value"},
		}
		must(c.sender(queue, nil).Send(c.ctx, sent, nil))
		message := c.take(c.receiver(queue, nil))
		expect(message.Value, sent.Value, "body")
		expect(message.ApplicationProperties, sent.ApplicationProperties, "application properties")
		expect(*message.Properties.Subject, subject, "subject")
		expect(message.Properties.CorrelationID, uint64(7), "correlation id")
		expect([]any{message.Header.Durable, message.Header.Priority}, []any{true, 7}, "header")
	}),

	check("a selector chooses", func(c *client) {
		queue := newName(c.told)
		sender := c.sender(queue, nil)
		for number, colour := range []string{"red", "blue", "red"} {
			message := amqp.NewMessage(fmt.Appendf(nil, "%d", number))
			message.ApplicationProperties = map[string]any{"colour": colour}
			must(sender.Send(c.ctx, message, nil))
		}
		filter := amqp.NewSelectorFilter("colour = 'red'")
		receiver := c.receiver(queue, &amqp.ReceiverOptions{Filters: []amqp.LinkFilter{filter}, Credit: 5})
		for _, number := range []int{0, 2} {
			message := c.take(receiver)
			expect(string(message.GetData()), number, "body")
			must(receiver.AcceptMessage(c.ctx, message))
		}
		c.takeNothing(receiver)
	}),

	check("a dynamic source is an address that others may send to", func(c *client) {
		receiver := c.receiver("", &amqp.ReceiverOptions{DynamicAddress: true})
		c.send(c.sender(receiver.Address(), nil), 0, 3)
		c.takeNumbers(receiver, 0, 3)
	}),

	check("links to what is nowhere are refused with a reason", func(c *client) {
		strict := dial(c.ctx, c.told, fmt.Sprintf("amqp://127.0.0.1:%d", c.told.StrictPort), nil)
		defer strict.conn.Close()
		_, err := strict.session.NewSender(c.ctx, newName(c.told), nil)
		expect(condition(err), "amqp:not-found", "the sender's refusal")
		_, err = strict.session.NewReceiver(c.ctx, newName(c.told), nil)
		expect(condition(err), "amqp:not-found", "the receiver's refusal")
	}),

	check("the anonymous relay sends where each message says, and rejects what names no node", func(c *client) {
		queue := newName(c.told)
		c.send(c.sender(queue, nil), 0, 1)
		strict := dial(c.ctx, c.told, fmt.Sprintf("amqp://127.0.0.1:%d", c.told.StrictPort), nil)
		defer strict.conn.Close()
		relay := strict.sender("", nil)
		message := amqp.NewMessage([]byte("1"))
		message.Properties = &amqp.MessageProperties{To: &queue}
		must(relay.Send(c.ctx, message, nil))
		nowhere := newName(c.told)
		lost := amqp.NewMessage([]byte("lost"))
		lost.Properties = &amqp.MessageProperties{To: &nowhere}
		expect(condition(relay.Send(c.ctx, lost, nil)), "amqp:not-found", "the rejection")
		c.takeNumbers(c.receiver(queue, nil), 0, 2)
	}),

	check("small frames carry large messages", func(c *client) {
		options := &amqp.ConnOptions{MaxFrameSize: 512}
		small := dial(c.ctx, c.told, fmt.Sprintf("amqp://127.0.0.1:%d", c.told.Port), options)
		defer small.conn.Close()
		queue := newName(c.told)
		body := bytes.Repeat([]byte("lockstep"), 10_000)
		must(small.sender(queue, nil).Send(c.ctx, amqp.NewMessage(body), nil))
		expect(bytes.Equal(small.take(small.receiver(queue, nil)).GetData(), body), true, "the same bytes")
	}),

	check("a user logs in with a password over TLS", func(c *client) {
		authorities := x509.NewCertPool()
		authorities.AppendCertsFromPEM(got(os.ReadFile(c.told.Authority)))
		// The certificate of the tests has a common name only, which Go does not look at: its chain is verified by hand.
		trusting := &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error {
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: authorities})
			return err
		}}
		options := &amqp.ConnOptions{SASLType: amqp.SASLTypePlain(c.told.User, c.told.Password), TLSConfig: trusting}
		secure := dial(c.ctx, c.told, fmt.Sprintf("amqps://localhost:%d", c.told.TLSPort), options)
		defer secure.conn.Close()
		queue := newName(c.told)
		secure.send(secure.sender(queue, nil), 0, 1)
		secure.takeNumbers(secure.receiver(queue, nil), 0, 1)
	}),
}

func (one checked) error(t told) (message string) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	defer func() {
		if failure := recover(); failure != nil {
			message = fmt.Sprint(failure)
		}
	}()
	c := dial(ctx, t, fmt.Sprintf("amqp://127.0.0.1:%d", t.Port), nil)
	defer c.conn.Close()
	one.run(c)
	return ""
}

func main() {
	var t told
	must(json.Unmarshal([]byte(os.Args[1]), &t))
	for _, one := range checks {
		must(json.NewEncoder(os.Stdout).Encode(map[string]string{"check": one.sentence, "error": one.error(t)}))
	}
}
