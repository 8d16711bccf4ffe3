{{ config(materialized='incremental', incremental_strategy='insert_overwrite', partition_by=['day']) }}
select day, product_id, cast(sum(quantity) as bigint) as sold
from {{ ref('stg_orders') }}
{% if is_incremental() %}
where day >= date '{{ var("until") }}'
{% endif %}
group by day, product_id
