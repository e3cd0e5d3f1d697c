"""`penstock config check` and `keys`."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.admin.configuration import EffectiveValue, check_configuration, effective_values, key_facts
from penstock.admin.jobs import load_without_job
from penstock.base.wording import counted
from penstock.cli.shared.application import load_application
from penstock.cli.shared.errors import say
from penstock.cli.shared.options import AsJson, JsonCall, command
from penstock.cli.shared.output import print_json, show
from penstock.config.load import load_config
from penstock.facts import Facts, FactTable

app = typer.Typer(help="Check a configuration, or list the keys.", no_args_is_help=True)


@command(app, "check")
def check(
    application: Annotated[str | None, typer.Argument(metavar="APP")] = None,
    *,
    call: JsonCall,
    all_keys: Annotated[bool, typer.Option("--all")] = False,
) -> None:
    """Print the values that are set and where each comes from, or all mistakes. JSON always has all keys.

    Args:
        application: Check it against this application, too: module:object or file.py:object.
        all_keys: Show keys that have their defaults, too.
    """
    if application is None:
        loaded, graph = load_without_job(call.config, call.assignments), None
    else:
        app = load_application(application).app
        graph = app.graph()
        stores = [store.name for store in graph.stores]
        loaded = load_config(call.config, assignments=call.assignments or (), default_job_name=app.name, stores=stores)
    check_configuration(graph, loaded)
    values = effective_values(loaded, graph)
    if call.as_json:
        print_json(values)
    else:
        _show(values if all_keys else [each for each in values if each.key in loaded.origins], len(values))


@command(app, "keys")
def keys(text: Annotated[str | None, typer.Argument(metavar="TEXT")] = None, as_json: AsJson = False) -> None:
    """List every key, what it means and its default.

    Args:
        text: Only keys whose name contains this text.
    """
    facts = key_facts(text)
    if as_json:
        print_json(facts)
    else:
        show(Facts({}, (FactTable("", facts),)))


def _show(values: list[EffectiveValue], known: int) -> None:
    show(Facts({}, (FactTable("", values),)))
    if len(values) < known:
        say(f"{counted(known - len(values), 'other key')} have their defaults; `--all` shows them")
