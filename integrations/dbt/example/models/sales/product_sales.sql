{{ config(
    materialized='incremental', unique_key='product_id', merge_exclude_columns=['first_sold'],
    on_schema_change='append_new_columns'
) }}
select
    product_id,
    cast(sum(quantity) as bigint) as sold,
    {% if var('with_orders', false) %}count(distinct order_id) as orders,{% endif %}
    min(day) as first_sold
from {{ ref('stg_orders') }}
group by product_id
