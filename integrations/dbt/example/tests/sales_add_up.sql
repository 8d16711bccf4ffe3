-- The sales by day and the sales by product count the same pieces.
select *
from (select sum(sold) as pieces from {{ ref('sales_by_day') }}) as by_day
join (select sum(sold) as pieces from {{ ref('product_sales') }}) as by_product
    on by_day.pieces <> by_product.pieces
