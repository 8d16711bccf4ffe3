{{ config(event_time='ordered_at') }}
select order_id, line, product_id, quantity, ordered_at, cast(ordered_at as date) as day
from {{ ref('raw_orders') }}
where cast(ordered_at as date) <= date '{{ var("until") }}'
