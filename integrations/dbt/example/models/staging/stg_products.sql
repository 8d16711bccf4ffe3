select product_id, name, price, valid_from, note
from (
    select *, row_number() over (partition by product_id order by valid_from desc) as newest
    from {{ ref('raw_products') }}
    where valid_from <= date '{{ var("until") }}'
)
where newest = 1
