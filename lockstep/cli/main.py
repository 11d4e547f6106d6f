"""The command `lockstep`: groups of commands, each in a module of its own."""

import typer

from lockstep.cli import (
    cluster,
    demo,
    events,
    exchange,
    health,
    messages,
    pipeline,
    queue,
    resource_set,
    status,
    transfer,
    tx,
    up,
    user,
)

app = typer.Typer(
    name="lockstep",
    help="A highly available, transactional message broker.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("up")(up.up)
app.command("status")(status.status)
app.command("health")(health.health)
app.add_typer(resource_set.app, name="set", help="Resource sets: groups of queues with one primary.")
app.add_typer(queue.app, name="queue", help="Queues.")
app.add_typer(exchange.app, name="exchange", help="Exchanges and bindings.")
app.command("publish")(messages.publish)
app.command("consume")(messages.consume)
app.command("browse")(messages.browse)
app.command("transfer")(transfer.transfer)
app.command("outcome")(messages.outcome)
app.add_typer(tx.app, name="tx", help="Branches of distributed transactions, and those in doubt.")
app.add_typer(user.app, name="user", help="Users of the AMQP proxy.")
app.add_typer(events.app, name="events", help="Committed events, and the groups that read them.")
app.command("promote")(cluster.promote)
app.command("step-down")(cluster.step_down)
app.add_typer(cluster.app, name="cluster", help="What operators do in an emergency.")
app.add_typer(pipeline.app, name="pipeline", help="Committed events into tables, with Spark.")
app.command("demo")(demo.demo)
