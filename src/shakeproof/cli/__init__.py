"""The command: parse, call, print. Nothing else in the package prints. Heavy imports wait until they are needed."""

from __future__ import annotations

import logging
import os
import sys
import warnings

import click

from shakeproof import __version__
from shakeproof.budget import keep_freed_memory
from shakeproof.cli.analysing import compare, profile, verify
from shakeproof.cli.campaigning import campaign
from shakeproof.cli.exporting import demo, export
from shakeproof.cli.inspecting import check, kernels, supports
from shakeproof.cli.scanning import scan
from shakeproof.cli.showing import report, results, table
from shakeproof.cli.terminal import EXIT_BAD_INPUT, EXIT_INTERRUPTED, complain, print_anywhere, say
from shakeproof.errors import ShakeproofError

# How OpenMP's threads wait for one another, unless the user says otherwise; the second is the word of Intel's and
# LLVM's libraries, which torch brings on other systems. By default they spin for a while. On a busy machine a spinning
# thread takes the core from the one it waits for, and everything becomes many times slower (docs/speed.md); sleeping
# costs a wake-up for each product.
PATIENCE = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}


def main() -> None:
    """Run the command. Every user error ends as one line on stderr and exit code 2."""
    for name, value in PATIENCE.items():  # before torch is imported
        os.environ.setdefault(name, value)
    print_anywhere()
    keep_freed_memory()
    if not sys.warnoptions:  # what libraries warn of or log is for programmers
        warnings.simplefilter("ignore")
        logging.getLogger().addHandler(logging.NullHandler())
    try:
        code = cli.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message())
        code = EXIT_BAD_INPUT
    except click.ClickException as error:
        code = complain(error.format_message())
    except ShakeproofError as error:
        code = complain(error)
    except BrokenPipeError:
        sys.stderr.close()
        code = EXIT_BAD_INPUT
    except OSError as error:
        code = complain(f"{error.filename or 'output'}: {error.strerror or error}")
    except MemoryError:
        code = complain(
            "the machine's memory is not enough for this; give a smaller network or image, or less --memory"
        )
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    except Exception as error:  # a traceback's exit code, 1, would read as a verdict
        code = complain(f"internal error, please report it: {type(error).__name__}: {error}")
    sys.exit(code)


class CommandsInOrder(click.Group):
    """Lists commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=CommandsInOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shakeproof")
def cli() -> None:
    """How much blur, camera shake or sharpening can an image take before a network's prediction changes?

    \b
    At which strength does the prediction change?
        shakeproof profile MODEL IMAGE -p box-blur:size=5
    Is the prediction safe up to a strength?
        shakeproof verify MODEL IMAGE -p box-blur:size=5 --strength 0.5
    How does a whole data set do?
        shakeproof campaign FILE.toml

    New here? `shakeproof demo` shows a report; `shakeproof demo --files DIR` writes files to try commands on. For a
    large network, or one that cannot be analysed, ask about 8-bit pictures: --pixels 8bit.

    Exit codes: 0 all safe, 1 some unsafe, 2 bad input, 3 some undecided and none unsafe.
    """


COMMANDS = (profile, verify, campaign, table, results, report, check, compare, scan, kernels, supports, export, demo)
for command in COMMANDS:
    cli.add_command(command)
