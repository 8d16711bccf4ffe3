{{ config(
    materialized='incremental', incremental_strategy='microbatch', event_time='ordered_at',
    begin='2026-03-01', batch_size='day', lookback=1
) }}
select order_id, line, quantity, ordered_at from {{ ref('stg_orders') }}
