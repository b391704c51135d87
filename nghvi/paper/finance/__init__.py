"""Asset pricing data: monthly returns by industry and the factors that should explain them."""

from nghvi.paper.finance.files import read_factors as read_factors
from nghvi.paper.finance.stock_panel import FF3 as FF3
from nghvi.paper.finance.stock_panel import FF5 as FF5
from nghvi.paper.finance.stock_panel import StockPanel as StockPanel
from nghvi.paper.finance.stock_panel import block_bootstrap as block_bootstrap
from nghvi.paper.finance.stock_panel import load_panel as load_panel
from nghvi.paper.finance.stock_panel import synthetic_panel as synthetic_panel
