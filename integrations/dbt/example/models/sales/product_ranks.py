"""Products by the amount of their sales."""


def model(dbt, session):
    """Return the products, the best-selling first."""
    dbt.config(materialized="table")
    lines = dbt.ref("order_lines")
    totals = lines.groupBy("name").agg({"amount": "sum"}).withColumnRenamed("sum(amount)", "amount")
    return totals.orderBy("amount", ascending=False)
