"""Lists the three products of each shop that sold best in each hour.

Sales may be up to ten minutes out of order. Publish some to the stream `sales`, run the job, and read the stream
`best-sellers`:

    penstock run examples/jobs/top_n.py:app
"""

from dataclasses import dataclass

import penstock as ps


@dataclass(frozen=True)
class Sale:
    shop: str
    product: str
    cents: int
    at_ms: int


app = ps.StreamApplication("top-n")
sales = app.input(
    "local.sales",
    value=ps.Struct(Sale),
    timestamp=lambda sale: sale.at_ms,
    watermark=ps.BoundedOutOfOrderness("10min"),
)
hour = ps.Windows.tumbling("1h", aggregates={"cents": ps.Sum(lambda sale: sale.cents)})
best = ps.Windows.tumbling("1h", aggregates={"best": ps.TopN(n=3, by=lambda total: total["cents"])})
(
    sales.partition_by(
        lambda sale: (sale.shop, sale.product), key=ps.Tuple(ps.String(), ps.String()), id="by-shop-and-product"
    )
    .window(hour, id="totals")
    .map(lambda pane: {"shop": pane.key[0], "product": pane.key[1], "cents": pane.message["cents"]}, id="total")
    .partition_by(lambda total: total["shop"], id="by-shop")
    .window(best, rows=True, id="best")
    .send_to(app.output("local.best-sellers"))
)
