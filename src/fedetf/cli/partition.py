"""``fedetf partition``."""

import argparse
from pathlib import Path
from typing import Any

from fedetf.cli.flags import add_command, add_data_flags, add_out, add_seed, add_source, chosen_settings, output


def add_to(commands: Any) -> None:
    """Its flags."""
    partition = add_command(
        commands,
        "partition",
        partition_command,
        "show who holds what, as a table and a picture, without training",
        "fedetf partition --dataset digits --clients 20 --alpha 0.05",
    )
    add_source(partition)
    add_data_flags(partition)
    add_seed(partition)
    add_out(partition, "folder for the picture (default: runs/<dataset>-partition-s<seed>-<time>)")


def partition_command(options: argparse.Namespace) -> None:
    """``fedetf partition``."""

    from fedetf.data import deal_out, load_dataset
    from fedetf.data.oddities import oddities
    from fedetf.data.sources import SITE
    from fedetf.files import make_folder, write_whole
    from fedetf.report.figures import partition_figure, save_figure
    from fedetf.report.tables import partition_table
    from fedetf.runs.folder import check_free, default_folder
    from fedetf.runs.records import PARTITION

    settings = chosen_settings(options)
    out: Path = options.out or default_folder(settings, "partition")
    check_free(out)
    dataset = load_dataset(settings.data, settings.seed)
    partition = deal_out(dataset, settings.data, settings.seed)
    make_folder(out)
    write_whole(out / PARTITION, partition.to_json().encode())
    dealt = settings.data
    if partition.sites:  # a column names the clients, or their files or folders do: alpha has no say
        dealt = dealt.model_copy(update={"site_column": dealt.site_column or SITE})
    title = f"{dealt.name}, {len(partition)} clients, {dealt.describe()}, seed {settings.seed}"
    picture = save_figure(partition_figure(partition, title), out / "partition.png")
    console = output()
    console.print(title, soft_wrap=True)
    console.print(partition_table(partition))
    for line in oddities(dataset, partition):
        console.print(line, soft_wrap=True, markup=False)
    console.print(f"picture: {picture}", soft_wrap=True)
