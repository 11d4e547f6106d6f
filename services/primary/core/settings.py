"""Limits and times of the primary role, with the reason for each default."""

from dataclasses import dataclass

from lockstep.core.pieces import PIECE_COST


@dataclass(frozen=True, slots=True)
class PrimarySettings:
    """Given by the broker's settings; the simulator draws its own."""

    message_bytes_max: int = 32 * 1024 * 1024
    """Properties and body of one message: twice what users of other brokers expect to pass."""
    command_messages_max: int = 10_000
    """Messages or positions in one command: one record, which every replica handles in one go, unless they go to many queues."""
    command_bytes_max: int = 64 * 1024 * 1024
    """Bytes that one command brings, and that the log gets of it: a content is there once for each kind of queue that it goes to.
    A frame holds whole commands, and has to pass every stream (`FRAME_BYTES_MAX`)."""
    message_queues_max: int = 10_000
    """Queues that one message may go to. They are looked through in one step when it comes, for half a microsecond each; what it
    does to them goes in pieces, between which the set does nothing else, for some microseconds each on every replica. A dead
    letter goes to so many of its targets, those that were declared first: nobody can refuse it."""
    command_places_max: int = 1_000_000
    """Messages of one command times the queues that each goes to. Nothing comes between what they do, which takes some
    microseconds and some hundred bytes each, on every replica: five seconds, and as much memory as the content of a big command.
    What a message that goes nowhere else may have (`message_queues_max`), a hundred times."""
    name_bytes_max: int = 255
    """Of queues, exchanges and keys, those of messages too: AMQP's short string. So no key or pattern has more than 128 words."""
    binding_arguments_bytes_max: int = 4096
    """Names and values of one binding's arguments; a message's headers are compared with all of them."""
    transaction_operations_max: int = 100_000
    """Messages and accepts in one transaction. One record commits them all, for 10 us each at most if every one came by itself: a
    third of the lease, on each replica. That goes in pieces, between which the set does nothing else."""
    transaction_bytes_max: int = 256 * 1024 * 1024
    """Content of one transaction: every replica keeps it in memory until its end. As much as may wait to be committed, so that
    a transaction that is taken can also be replicated."""
    transaction_places_max: int = 1_000_000
    """The same of one transaction, whose messages get them all at once when it commits: no more than one command brings, so that
    clients may join what is of one transaction."""
    described_bindings_max: int = 1000
    """Bindings in one description of a queue: each may be some kilobytes."""
    subscriptions_max: int = 100
    """Groups that read committed events: each holds what it is owed on every disk, or, left behind, its name."""
    subscription_retention_ms: int = 3 * 86_400_000
    """A group that lacks events of so long ago is left behind: a pipeline that stood for a long weekend goes on, one that nobody
    runs any more does not fill the disks."""
    transactions_open_max: int = 10_000
    """Open transactions in one resource set."""
    session_transactions_open_max: int = 5000
    """Of them, those of one session: half, so that a client that forgets to end its own leaves the others theirs. A proxy has one
    session for all of its clients, each of whose connections it limits by itself."""
    early_messages_max: int = 20_000
    """Messages of clients that wait for the epoch to serve: an attach and a heartbeat are all that a client sends before it heard
    of the epoch, so half as many clients may wait, and no more have a stream of one broker."""
    early_bytes_max: int = 64 * 1024 * 1024
    """Content of these messages: one command of the largest size."""
    branch_timeout_ms: int = 60_000
    """Time-out of a branch that says nothing else, until it is prepared: the DTX contract's 60 s."""
    branch_timeout_ms_max: int = 3_600_000
    """Longest time-out of a branch: for so long an application that is gone may hold its messages."""
    decision_ask_ms: int = 5_000
    """How long a prepared branch of our coordinator waits before it looks for its decision by itself, and between two looks: far
    longer than a commit takes, and short beside what people notice."""
    decisions_asked_max: int = 64
    """Branches that look at once: each is a read of etcd. As many may look because a client has asked for their outcome."""
    outcome_wait_ms: int = 1_000
    """How long a client that asks for the outcome of a prepared branch waits for etcd; then it hears that it is prepared. Below
    what brokers and clients wait for an answer."""
    in_doubt_ms: int = 60_000
    """A branch that is prepared for longer is warned of: it outlasted a failover, its coordinator's retries and ten looks for its
    decision, so nothing ends it by itself but what an operator can see."""
    in_doubt_warnings_max: int = 20
    """Warnings in one look, twice a second: after an outage thousands of branches may be late at once."""
    recover_branches_max: int = 1000
    """Branches in one answer to `recover`."""
    backlog_messages_max: int = 2048
    """Messages of one stream that wait behind a declaration for etcd: what a client may have unanswered, and its requests."""
    claims_ahead_max: int = 64
    """Names of one stream that are asked for while their declarations wait behind another one: as many as go to etcd in one
    transaction."""
    frames_in_flight_max: int = 2
    """Frames not yet durable at the own store: the next group gathers behind them, no timer (DESIGN 9)."""
    gathered_bytes: int = 64 * 1024
    """Less than this waits for the frame before it to be committed, and for what joins it meanwhile."""
    gathering_ms_max: int = 10
    """A frame waits no longer for clients that were just answered and come back at once, so that they leave together: a disk or a
    network on which frames need longer gathers enough meanwhile."""
    frame_bytes_max: int = 1024 * 1024
    """Content after which no further command joins a frame: what one fdatasync carries well."""
    uncommitted_bytes_max: int = 256 * 1024 * 1024
    """Frames behind the commit index; beyond it commands are pushed back."""
    reserve_bytes: int = 64 * 1024 * 1024
    """Room on the own disk below which publishes are rejected, so that commits, accepts and deletions still find their place."""
    retained_bytes_max: int = 64 * 1024 * 1024
    """Committed frames kept in memory for backups that return: they are sent only what they lack."""
    heartbeat_ms: int = 250
    """A silent stream says this often that it lives (DESIGN 9: 200-300 ms)."""
    heartbeat_misses: int = 3
    """Heartbeats missing after which a backup counts as lost."""
    store_retry_ms: int = 500
    """Wait after the own store refused (full, an I/O error), before it is opened again."""
    store_word_ms: int = 1000
    """The own store hears something at least so often: a set at rest learns, too, that its store has been fenced (R2)."""
    store_patience_ms: int = 5000
    """How long the own store may fail before a primary with a member in sync beside it makes way."""
    swap_retry_ms: int = 100
    """Wait after a swap that failed or is in doubt, before the next one."""
    subscription_grace_ms: int = 1500
    """How long a new primary waits for the members of its set to subscribe before it removes them."""
    guard_lag: int = 2000
    """Log indexes that a learner may be behind what was committed a tick or two ago when it is guarded: near enough that commits
    do not wait long for it."""
    delivery_batch_max: int = 256
    """Messages in one delivery to one consumer, so that many consumers share a queue fairly."""
    browse_messages_max: int = 1000
    """Messages in one answer to a browse."""
    browse_bytes_max: int = 4 * 1024 * 1024
    """Bytes in one answer to a browse, after which it is cut."""
    browses_waiting_max: int = 16
    """Answers to browses of one stream that wait to be committed: each keeps its messages."""
    questions_waiting_max: int = 1000
    """Answers of one stream, to requests of all kinds, that wait to be committed; a set below its minimum may wait for long."""
    client_heartbeats: int = 1000
    """Heartbeats of clients in a second, of all together, about: each costs 0.1 ms. With more than 250 clients of one set each is
    asked to send its own less often than it would, and needs as much longer to notice a primary that hangs."""
    client_silence_ms: int = 60_000
    """A stream with consumers that says nothing for so long is closed, and its session ends after its own time-out: a client
    that hangs holds what was delivered to it no longer than that. Clients send heartbeats a hundred times as often."""
    sessions_max: int = 100_000
    """Sessions in one resource set: each costs every replica some kilobytes, attached or not."""
    stream_consumers_max: int = 5000
    """Consumers of one session. A proxy has one session for all of its clients, each of whose connections it limits by itself.
    When the session comes back they are all opened in one go."""
    consumer_credit_max: int = 1_000_000
    """Beyond it credit is cut: it bounds what one client can hold."""
    delivery_bytes_max: int = 1024 * 1024
    """Bytes in one delivery, after which it is cut: one write to the client."""
    delivery_turn_max: int = 10_000
    """Messages delivered in one go, after which other work has its turn. Messages that a selector is asked about, or that a
    consumer with a view of its own steps over, count too."""
    deliveries_max: int = 1000
    """Consumers, or the same ones again, that something is delivered to in one go: some milliseconds' work. A publish may reach
    thousands that wait for one message each."""
    session_timeout_ms_max: int = 300_000
    """Longest time that a session waits for its client to come back."""
    time_outs_max: int = 500
    """Transactions that are rolled back in one go because their time is over: some milliseconds' work."""
    session_ends_max: int = 64
    """Sessions that end in one go because their time is over, some milliseconds' work: where thousands vanish together, others
    have their turn between them, and the lease is renewed."""
    given_back_max: int = 2000
    """Messages that such sessions give back in one go, and operations of their transactions that are undone: each some
    microseconds' work. A session that has more ends by itself, in pieces, and nothing comes between."""
    outcome_retention_ms: int = 3_600_000
    """How long outcomes are kept for those who ask (DESIGN T5)."""
    outcomes_max: int = 2_000_000
    """Outcomes of one set, at most: each costs every replica some 220 bytes. At 4,000 transactions a second they last for longer
    than a session may be away, and not for the whole retention. A transaction over several sets that is open for longer than they
    last cannot begin a branch here any more."""
    outcomes_kept_max: int = 10_000
    """Of them, those that stay although their time is over, for the decision log has their transactions: each record that raises
    the floor names them, in 100 KB. As many branches as commit in half a minute while another participant is away (`keep_ms` of
    coordinators), at 300 a second; with more of them the floor waits for a while."""
    outcome_sweep_ms: int = 1000
    """How often the retention floor is raised."""
    outcome_sweep_max: int = 20_000
    """Outcomes forgotten in one go, which takes some 8 ms, and 16 where all are of branches: several times as many as a second
    brings."""
    piece_cost: int = PIECE_COST
    """Of what is done in one go of works that are long, in microseconds, about: others have their turn in between."""
    names_check_ms: int = 30_000
    """How often the set's names in the cluster's directory are compared with its state: what two looks in a row find is put
    right. Longer than a client needs to come back and declare what it had begun to; a name that nobody has harms nobody else
    but who wants it in another set."""
    names_batch_max: int = 1000
    """Names given back or claimed after one comparison: each is a transaction of etcd."""
    expiry_batch_max: int = 1000
    """Messages expired in one go, so that a flood of them does not stop other work."""
    reading_bytes_max: int = 1024 * 1024
    """Content that one request to the own store brings back, unless a single message is bigger: one delivery."""
    reading_messages_max: int = 1000
    """Messages in one such request."""
    readings_in_flight_max: int = 2
    """Such requests on their way: the store reads one while the other travels."""
    readings_waiting_max: int = 1000
    """Such requests that wait; beyond it browsers of bodies that are away are turned away."""
    snapshot_chunk_bytes: int = 1024 * 1024
    """Size of one part of a snapshot on its way to a newcomer."""
    catching_up_bytes_max: int = 2 * 1024 * 1024 * 1024
    """Log in memory for a newcomer that is being sent everything; beyond it the newcomer begins anew: the state is too big for
    so much traffic beside it."""
