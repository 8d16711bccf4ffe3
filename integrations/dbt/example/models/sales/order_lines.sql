{{ config(materialized='incremental', incremental_strategy='delete+insert', unique_key='order_id') }}
select o.order_id, o.line, p.name, o.quantity, cast(o.quantity * p.price as decimal(12, 2)) as amount
from {{ ref('stg_orders') }} as o
join {{ ref('stg_products') }} as p using (product_id)
{% if is_incremental() %}
where o.day >= date '{{ var("until") }}'
{% endif %}
