{{ config(materialized='incremental', incremental_strategy='append') }}
select order_id, line, ordered_at from {{ ref('stg_orders') }}
{% if is_incremental() %}
where ordered_at > (select max(ordered_at) from {{ this }})
{% endif %}
