{{ config(materialized='table', contract={'enforced': true}, tblproperties={'primary_key': 'product_id'}) }}
select product_id, name, price, note from {{ ref('stg_products') }}
